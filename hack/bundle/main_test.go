package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWriteSparesOtherDirectories: a directory that only has the name of a bundle is left as it is.
func TestWriteSparesOtherDirectories(t *testing.T) {
	directory := t.TempDir()
	source := filepath.Join(directory, "bundle", "rules.go")
	if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(source, []byte("package bundle\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := write(directory, map[string][]byte{"bundle/manifests/new.yaml": nil, "bundle.Dockerfile": nil})
	if err == nil || !strings.Contains(err.Error(), "is not a bundle, because it has rules.go") {
		t.Errorf("over another directory: %v", err)
	}
	if _, err := os.Stat(source); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(directory, "bundle.Dockerfile")); !os.IsNotExist(err) {
		t.Errorf("what was written nevertheless: %v", err)
	}
}
