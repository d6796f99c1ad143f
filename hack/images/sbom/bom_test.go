package main

import (
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

func TestBillRepeats(t *testing.T) {
	archive, program := filepath.Join(t.TempDir(), "archive"), self(t)
	write := func(content, out string) string {
		t.Helper()
		if err := os.WriteFile(archive, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		out = filepath.Join(t.TempDir(), out)
		if err := run([]string{"-archive", archive, "-name", "a", "-version", "v1", "-created", "1000000000", "-program", program, "-out", out}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	one := write("content", "one")
	if write("content", "two") != one {
		t.Error("the same files give another bill")
	}
	if write("other content", "three") == one {
		t.Error("another archive has the same bill")
	}
	if !strings.Contains(one, `"timestamp": "2001-09-09T01:46:40Z"`) || !strings.Contains(one, "pkg:golang/github.com/CycloneDX/cyclonedx-go@v") {
		t.Errorf("the bill is\n%s", one)
	}
}

func TestDebianPackages(t *testing.T) {
	root := t.TempDir()
	if _, err := debianPackages(root); err == nil {
		t.Error("a directory without a system passes")
	}
	put := func(path, content string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	put("etc/os-release", "ID=debian\nVERSION_ID=\"12\"\n")
	put("var/lib/dpkg/status.d/libc6", "Package: libc6\nSource: glibc (2.36)\nVersion: 1:2.36-9+deb12u14\nArchitecture: amd64\nDescription: a\n Version: 9\n")
	got, err := debianPackages(root)
	if err != nil || len(got) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	const want = "pkg:deb/debian/libc6@1:2.36-9%2Bdeb12u14?arch=amd64&distro=debian-12&upstream=glibc"
	if got[0].PackageURL != want || got[0].Version != "1:2.36-9+deb12u14" {
		t.Errorf("%+v, want %s", got[0], want)
	}
	put("var/lib/dpkg/status.d/nameless", "Version: 1\n")
	if _, err := debianPackages(root); err == nil || !strings.Contains(err.Error(), "status.d/nameless") {
		t.Errorf("a package without a name: %v", err)
	}
}

func TestModuleWithoutSum(t *testing.T) {
	if _, err := moduleHash(&debug.Module{Path: "example.com/a", Version: "(devel)"}); err == nil || !strings.Contains(err.Error(), "example.com/a") {
		t.Errorf("a module of a directory: %v", err)
	}
}

func TestSerialNumber(t *testing.T) {
	sum := sha256.Sum256(nil)
	if got, want := serialNumber(sum[:]), "urn:uuid:e3b0c442-98fc-8c14-9afb-f4c8996fb924"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// self is a Go program: this test.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
