package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPackDirectoryForgetsWhoAndWhen(t *testing.T) {
	build := func(order []string, age time.Duration) []byte {
		directory := t.TempDir()
		for _, name := range order {
			writeFile(t, filepath.Join(directory, name), "content of "+name, 0o644)
		}
		if err := errors.Join(
			os.Chmod(filepath.Join(directory, "usr/bin/su"), 0o755|os.ModeSetuid),
			os.Symlink("su", filepath.Join(directory, "usr/bin/link")),
			os.Chtimes(filepath.Join(directory, "usr"), time.Now().Add(-age), time.Now().Add(-age)),
			os.Chtimes(filepath.Join(directory, "etc/a"), time.Now().Add(-age), time.Now().Add(-age)),
		); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := packDirectory(&out, directory); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	one := build([]string{"usr/bin/su", "etc/a", "etc/b"}, 0)
	two := build([]string{"etc/b", "etc/a", "usr/bin/su"}, 100*time.Hour)
	if !bytes.Equal(one, two) {
		t.Error("the same files at another time and in another order give another layer")
	}
	got := list(t, bytes.NewReader(one))
	want := []string{"etc/ 755", "etc/a 644", "etc/b 644", "usr/ 755", "usr/bin/ 755", "usr/bin/link -> su", "usr/bin/su 4755"}
	if !slices.Equal(got, want) {
		t.Errorf("the layer has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestPackProgram(t *testing.T) {
	program := filepath.Join(t.TempDir(), "agent")
	writeFile(t, program, "code", 0o600)
	var out bytes.Buffer
	if err := packProgram(&out, program); err != nil {
		t.Fatal(err)
	}
	if got, want := list(t, &out), []string{"agent 755"}; !slices.Equal(got, want) {
		t.Errorf("the layer has %q, want %q", got, want)
	}
}

func TestLibraries(t *testing.T) {
	// A program of this machine that needs libraries, and those libraries.
	const program = "/bin/ls"
	libraries, err := neededBy(program)
	if err != nil || len(libraries) == 0 {
		t.Fatalf("%s needs %q: %v", program, libraries, err)
	}
	root := t.TempDir()
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(root, "bin/ls"), string(content), 0o755)
	err = checkLibraries(root)
	for _, library := range libraries {
		if err == nil || !strings.Contains(err.Error(), library+", for /bin/ls") {
			t.Errorf("without %s: %v", library, err)
		}
		writeFile(t, filepath.Join(root, "usr/lib/x86_64-linux-gnu", library), "", 0o644)
	}
	if err := checkLibraries(root); err != nil {
		t.Error(err)
	}
	if err := checkStatic(program); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("%s passes for a static program: %v", program, err)
	}
}

func TestWriteRejectsNames(t *testing.T) {
	for _, bad := range []string{"nodeproxy.io/agent:v1+build", "nodeproxy.io/agent", "nodeproxy.io/Agent:v1", "nodeproxy.io/agent:feature/x"} {
		if _, err := write(filepath.Join(t.TempDir(), "a.tar"), bad, nil); err == nil || !strings.Contains(err.Error(), "VERSION") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// list prints what an uncompressed layer has, and fails on owners and times.
func list(t *testing.T, layer io.Reader) []string {
	t.Helper()
	var out []string
	for entries := tar.NewReader(layer); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Gid != 0 || header.ModTime.Unix() != 0 {
			t.Errorf("%s belongs to %d:%d and is of %s; want 0:0 and 1970", header.Name, header.Uid, header.Gid, header.ModTime)
		}
		out = append(out, describe(header))
	}
}

func writeFile(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), mode)); err != nil {
		t.Fatal(err)
	}
}
