package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	oci "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// options describe an image.
type options struct {
	name         string // with registry and tag
	program      string // file that becomes /BASENAME and the entry point
	root         string // directory; empty: the program is all there is
	user         string // UID:GID; empty: root
	architecture string // as GOARCH
	labels       labels
}

// labels become annotations of the image, see
// https://github.com/opencontainers/image-spec/blob/main/annotations.md.
type labels struct {
	title, description, version, revision string
	created                               time.Time
}

func (l labels) all() map[string]string {
	const prefix = "org.opencontainers.image."
	out := map[string]string{
		prefix + "title":       l.title,
		prefix + "description": l.description,
		prefix + "version":     l.version,
		prefix + "source":      "https://github.com/nodeproxy-io/nodeproxy",
		prefix + "created":     l.created.Format(time.RFC3339),
	}
	if l.revision != "" {
		out[prefix+"revision"] = l.revision
	}
	return out
}

// newImage puts the root file system into a layer of its own, below the program:
// it is the same in many versions, so nodes and registries store it once.
func newImage(o options) (oci.Image, error) {
	var layers []oci.Layer
	if o.root != "" {
		if err := checkLibraries(o.root); err != nil {
			return nil, err
		}
		layer, err := newLayer(func(to io.Writer) error { return packDirectory(to, o.root) })
		if err != nil {
			return nil, fmt.Errorf("pack the root file system: %w", err)
		}
		layers = append(layers, layer)
	}
	if err := checkStatic(o.program); err != nil {
		return nil, err
	}
	layer, err := newLayer(func(to io.Writer) error { return packProgram(to, o.program) })
	if err != nil {
		return nil, fmt.Errorf("pack the program: %w", err)
	}
	layers = append(layers, layer)

	image, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, fmt.Errorf("join the layers: %w", err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read the image's configuration: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", o.architecture
	file.Created = oci.Time{Time: o.labels.created}
	file.Config.Entrypoint = []string{"/" + filepath.Base(o.program)}
	file.Config.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	file.Config.User = o.user
	file.Config.WorkingDir = "/"
	file.Config.Labels = o.labels.all()
	return mutate.ConfigFile(image, file)
}

// newLayer keeps the layer in memory: it is read several times.
func newLayer(pack func(io.Writer) error) (oci.Layer, error) {
	var tar bytes.Buffer
	if err := pack(&tar); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(tar.Bytes())), nil
	})
}

// sizes are in bytes, of all layers.
type sizes struct{ unpacked, compressed int64 }

// write replaces the archive atomically, so that no reader gets half of one.
func write(archive, imageName string, image oci.Image) (sizes, error) {
	tag, err := name.NewTag(imageName, name.StrictValidation)
	if err != nil {
		return sizes{}, fmt.Errorf("%s is no name of an image, set IMAGE_REGISTRY and VERSION (letters, digits, '.', '_' and '-'): %w", imageName, err)
	}
	temp, err := os.CreateTemp(filepath.Dir(archive), "."+filepath.Base(archive)+"-")
	if err != nil {
		return sizes{}, fmt.Errorf("write the archive: %w", err)
	}
	defer os.Remove(temp.Name())
	if err := errors.Join(tarball.Write(tag, image, temp), temp.Chmod(0o644), temp.Close()); err != nil {
		return sizes{}, fmt.Errorf("write the archive %s: %w", archive, err)
	}
	if err := os.Rename(temp.Name(), archive); err != nil {
		return sizes{}, fmt.Errorf("write the archive: %w", err)
	}
	return sizesOf(image)
}

func sizesOf(image oci.Image) (sizes, error) {
	var sum sizes
	layers, err := image.Layers()
	if err != nil {
		return sum, fmt.Errorf("read the layers: %w", err)
	}
	for _, layer := range layers {
		compressed, sizeErr := layer.Size()
		from, openErr := layer.Uncompressed()
		if err := cmp.Or(sizeErr, openErr); err != nil {
			return sum, fmt.Errorf("read a layer: %w", err)
		}
		unpacked, copyErr := io.Copy(io.Discard, from)
		if err := errors.Join(copyErr, from.Close()); err != nil {
			return sum, fmt.Errorf("read a layer: %w", err)
		}
		sum.unpacked += unpacked
		sum.compressed += compressed
	}
	return sum, nil
}
