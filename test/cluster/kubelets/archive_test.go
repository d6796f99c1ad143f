package kubelets

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writeImage writes an image with one file, named as its program.
func writeImage(t *testing.T, tag, program, base string) string {
	t.Helper()
	directory := t.TempDir()
	file := filepath.Join(directory, program)
	if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	i := programImage(tag, program, file)
	i.base = base
	archive := filepath.Join(directory, "image.tar")
	if err := i.writeArchive(archive); err != nil {
		t.Fatal(err)
	}
	return archive
}

func TestAnImageOnAnotherHasItsLayersFirst(t *testing.T) {
	base := writeImage(t, "nodeproxy.test/base:1", "base", "")
	// The base's own layer and the added one would have the same name.
	if err := rename(base, layerEntry, "base-layer.tar"); err != nil {
		t.Fatal(err)
	}
	archive := writeImage(t, "nodeproxy.test/more:1", "more", base)

	index, config, err := readArchive(archive)
	if err != nil {
		t.Fatal(err)
	}
	_, below, err := readArchive(base)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"base-layer.tar", layerEntry}; !slices.Equal(index.Layers, want) {
		t.Errorf("layers are %v, not %v", index.Layers, want)
	}
	if len(config.Rootfs.DiffIDs) != 2 || config.Rootfs.DiffIDs[0] != below.Rootfs.DiffIDs[0] {
		t.Errorf("digests are %v; that of the base is %v", config.Rootfs.DiffIDs, below.Rootfs.DiffIDs)
	}
	if files := filesOf(t, archive, index.Layers); !slices.Equal(files, []string{"base", "more"}) {
		t.Errorf("the image holds %v", files)
	}
}

// rename changes the name of an entry, and where the manifest has it.
func rename(archive, from, to string) error {
	renamed, err := os.Create(archive + ".renamed")
	if err != nil {
		return err
	}
	defer renamed.Close()
	out := tar.NewWriter(renamed)
	err = eachEntry(archive, func(header *tar.Header, content io.Reader) error {
		text, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		name := header.Name
		if name == from {
			name = to
		}
		if name == manifestEntry {
			text = []byte(strings.ReplaceAll(string(text), from, to))
		}
		return writeEntry(out, name, header.Mode, text)
	})
	if err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(archive+".renamed", archive)
}

// filesOf lists the files of an image's layers, in their order.
func filesOf(t *testing.T, archive string, layers []string) []string {
	t.Helper()
	var files []string
	for _, layer := range layers {
		err := eachEntry(archive, func(header *tar.Header, content io.Reader) error {
			if header.Name != layer {
				return nil
			}
			inside, err := tar.NewReader(content).Next()
			if err == nil {
				files = append(files, inside.Name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func TestImageNamed(t *testing.T) {
	other := writeImage(t, "nodeproxy.io/other-nodeproxy-agent:1", "other", "")
	agent := writeImage(t, "nodeproxy.io/nodeproxy-agent:v1", "agent", "")
	if found, err := imageNamed("nodeproxy-agent", []string{other, agent}); err != nil || found != agent {
		t.Errorf("found %s, %v", found, err)
	}
	if _, err := imageNamed("nodeproxy-agent", []string{other}); err == nil {
		t.Error("found the agent's image among others")
	}
	if _, err := imageNamed("nodeproxy-agent", []string{os.Args[0]}); err == nil {
		t.Error("no complaint about a file that is no archive")
	}
}
