// Package goldentest compares what tests print with golden files.
package goldentest

import (
	"os"
	"path/filepath"
	"testing"
)

// Compare compares a text with a golden file. With update, it writes the file instead.
func Compare(t *testing.T, path, got string, update bool) {
	t.Helper()
	if update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("no golden: go test -update in this package writes it; review it: %v", err)
	}
	if got != string(want) {
		t.Errorf("%s differs: want\n%s\ngot\n%s", path, want, got)
	}
}
