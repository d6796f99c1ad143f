package kubelets

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
)

// image is a container image of a few files, which are programs.
type image struct {
	name string
	// base, if given, is the docker-archive of the image that the files are added
	// to.
	base       string
	files      map[string]string // path in the image to path here
	entrypoint []string
}

// manifest is the part of a docker-archive's manifest.json that we use.
type manifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// Names of our entries; those of a base may not have them.
const (
	manifestEntry = "manifest.json"
	configEntry   = "added-config.json"
	layerEntry    = "added-layer.tar"
)

// writeArchive writes the image in the form that `docker save` has and
// `ctr images import` takes.
func (i image) writeArchive(path string) error {
	if err := i.write(path); err != nil {
		return fmt.Errorf("making the image %s: %w", i.name, err)
	}
	return nil
}

func (i image) write(path string) error {
	layer, err := i.layer()
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	out := tar.NewWriter(file)
	layers, diffs := []string{}, []string{}
	if i.base != "" {
		if layers, diffs, err = copyLayers(out, i.base); err != nil {
			return err
		}
	}
	digest := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": i.entrypoint, "Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": append(diffs, "sha256:"+hex.EncodeToString(digest[:]))},
	})
	if err != nil {
		return err
	}
	index, err := json.Marshal([]manifest{{Config: configEntry, RepoTags: []string{i.name}, Layers: append(layers, layerEntry)}})
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{manifestEntry: index, configEntry: config, layerEntry: layer} {
		if err := writeEntry(out, name, 0o644, text); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return file.Close()
}

// copyLayers writes the layers of another docker-archive, and returns their names
// and their digests as its configuration has them.
func copyLayers(out *tar.Writer, archive string) (layers, diffs []string, err error) {
	index, config, err := readArchive(archive)
	if err != nil {
		return nil, nil, err
	}
	err = eachEntry(archive, func(header *tar.Header, content io.Reader) error {
		if !slices.Contains(index.Layers, header.Name) {
			return nil
		}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		_, err := io.Copy(out, content)
		return err
	})
	return index.Layers, config.Rootfs.DiffIDs, err
}

// imageConfig is the part of an image's configuration that we use.
type imageConfig struct {
	Rootfs struct {
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// readArchive reads what a docker-archive reports about its only image.
func readArchive(archive string) (index manifest, config imageConfig, err error) {
	texts := map[string][]byte{}
	err = eachEntry(archive, func(header *tar.Header, content io.Reader) (err error) {
		if header.Size < 1<<20 {
			texts[header.Name], err = io.ReadAll(content)
		}
		return err
	})
	if err != nil {
		return index, config, err
	}
	var all []manifest
	if err := json.Unmarshal(texts[manifestEntry], &all); err != nil || len(all) != 1 {
		return index, config, fmt.Errorf("%s is no docker-archive of one image", archive)
	}
	return all[0], config, json.Unmarshal(texts[all[0].Config], &config)
}

func eachEntry(archive string, f func(header *tar.Header, content io.Reader) error) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	in := tar.NewReader(file)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading %s: %w", archive, err)
		}
		if err := f(header, in); err != nil {
			return err
		}
	}
}

// layer returns the archive of the image's files.
func (i image) layer() ([]byte, error) {
	var layer bytes.Buffer
	out := tar.NewWriter(&layer)
	for to, from := range i.files {
		text, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		if err := writeEntry(out, to, 0o755, text); err != nil {
			return nil, err
		}
	}
	return layer.Bytes(), out.Close()
}

func writeEntry(out *tar.Writer, name string, mode int64, text []byte) error {
	header := &tar.Header{Name: name, Mode: mode, Size: int64(len(text)), Format: tar.FormatUSTAR}
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(out, bytes.NewReader(text))
	return err
}
