package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestLock runs debian-root.sh with a mirror of made-up packages.
func TestLock(t *testing.T) {
	if printed, err := exec.Command("../install-packages.sh", "mmdebstrap").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		t.Skip("installing mmdebstrap needs root")
	}
	m := newMirror(t)
	m.publish(t, "1.0", "as released")

	if printed, err := m.build(t); err == nil || !strings.Contains(printed, "does not pin iptables") || !strings.Contains(printed, "REFRESH=1") {
		t.Fatalf("without a lock: %v, and it prints %s", err, printed)
	}
	if printed, err := m.build(t, "REFRESH=1"); err != nil {
		t.Fatalf("pinning: %v\n%s", err, printed)
	}
	pinned := m.lock(t)
	if printed, err := m.build(t); err != nil || m.version(t) != "1.0" || m.notes(t) != "" {
		t.Errorf("with what is pinned: %v, version %s, notes %q\n%s", err, m.version(t), m.notes(t), printed)
	}

	// Both are there.
	m.publish(t, "1.1", "as released")
	if printed, err := m.build(t); err != nil || m.version(t) != "1.0" || !strings.Contains(m.notes(t), "newer packages") || !strings.Contains(m.notes(t), "iptables 1.1") {
		t.Errorf("beside a newer version: %v, version %s, notes %q\n%s", err, m.version(t), m.notes(t), printed)
	}

	m.withdraw("1.0")
	printed, err := m.build(t)
	if err == nil || !strings.Contains(printed, "no longer has ") || !strings.Contains(printed, "iptables 1.0") || !strings.Contains(printed, "REFRESH=1") || !strings.Contains(printed, "a snapshot of 20") {
		t.Errorf("the pinned version is gone: %v, and it prints %s", err, printed)
	}
	if printed, err := m.build(t, "STALE_PACKAGES=warn"); err != nil || m.version(t) != "1.1" || !strings.HasPrefix(m.notes(t), "WARNING: ") {
		t.Errorf("the pinned version is gone, with STALE_PACKAGES=warn: %v, version %s, notes %q\n%s", err, m.version(t), m.notes(t), printed)
	}
	if got := m.lock(t); got != pinned {
		t.Errorf("the lock was changed without REFRESH=1:\n%s", got)
	}

	// Another package under the same version.
	m.publish(t, "1.0", "changed")
	m.withdraw("1.1")
	if printed, err := m.build(t, "STALE_PACKAGES=warn"); err == nil || !strings.Contains(printed, "SHA-256") || !strings.Contains(printed, "1.0 from the mirror") {
		t.Errorf("a package is not the pinned one: %v, and it prints %s", err, printed)
	}
}

// mirror is one of Debian packages of one architecture, with a copy of the script whose
// lock it is about.
type mirror struct {
	directory string
	names     []string
	stanza    map[string][]string // of the index, by version
}

func newMirror(t *testing.T) *mirror {
	m := &mirror{directory: t.TempDir(), stanza: map[string][]string{}}
	script, err := os.ReadFile("debian-root.sh")
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(m.directory, "debian-root.sh"), string(script), 0o755)
	m.names = lockedNames(t, fmt.Sprintf("packages.%s.lock", runtime.GOARCH))
	return m
}

// lockedNames are the packages that a lock pins.
func lockedNames(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] != "#" {
			out = append(out, fields[0])
		}
	}
	return out
}

// publish adds all packages in a version.
func (m *mirror) publish(t *testing.T, version, content string) {
	t.Helper()
	m.stanza[version] = nil
	for _, name := range m.names {
		tree := t.TempDir()
		control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: Test <test@example.com>\nDescription: made up\n", name, version, runtime.GOARCH)
		writeFile(t, filepath.Join(tree, "DEBIAN", "control"), control, 0o644)
		writeFile(t, filepath.Join(tree, "usr/share/doc", name, "copyright"), content, 0o644)
		writeFile(t, filepath.Join(tree, "usr/sbin", "made-up-"+name), content, 0o755)
		file := fmt.Sprintf("%s_%s.deb", name, version)
		if printed, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", tree, filepath.Join(m.directory, file)).CombinedOutput(); err != nil {
			t.Fatalf("dpkg-deb: %v\n%s", err, printed)
		}
		built, err := os.ReadFile(filepath.Join(m.directory, file))
		if err != nil {
			t.Fatal(err)
		}
		m.stanza[version] = append(m.stanza[version], fmt.Sprintf("%sFilename: ./%s\nSize: %d\nSHA256: %x\n", control, file, len(built), sha256.Sum256(built)))
	}
}

func (m *mirror) withdraw(version string) { delete(m.stanza, version) }

// build runs the script into a directory that is new.
func (m *mirror) build(t *testing.T, variables ...string) (string, error) {
	t.Helper()
	var index []string
	for _, stanzas := range m.stanza {
		index = append(index, stanzas...)
	}
	writeFile(t, filepath.Join(m.directory, "Packages"), strings.Join(index, "\n")+"\n", 0o644)
	if err := errors.Join(os.RemoveAll(m.root()), os.RemoveAll(m.root()+".notes")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(m.directory, "debian-root.sh"), runtime.GOARCH, m.root())
	cmd.Env = append(os.Environ(), "REFRESH=", "STALE_PACKAGES=", "DEBIAN_MIRROR=deb [trusted=yes] copy:"+m.directory+" ./")
	cmd.Env = append(cmd.Env, variables...)
	printed, err := cmd.CombinedOutput()
	return string(printed), err
}

func (m *mirror) root() string { return filepath.Join(m.directory, "root") }

func (m *mirror) read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.directory, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (m *mirror) notes(t *testing.T) string { return m.read(t, "root.notes") }

func (m *mirror) lock(t *testing.T) string {
	return m.read(t, fmt.Sprintf("packages.%s.lock", runtime.GOARCH))
}

// version is that of iptables in the root file system.
func (m *mirror) version(t *testing.T) string {
	for line := range strings.Lines(m.read(t, "root/var/lib/dpkg/status.d/iptables")) {
		if version, found := strings.CutPrefix(line, "Version: "); found {
			return strings.TrimSpace(version)
		}
	}
	return ""
}
