package recorded

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestRecordEmptiesTheDirectory: nothing of a former record stays, but for what is not one.
func TestRecordEmptiesTheDirectory(t *testing.T) {
	directory, now := t.TempDir(), time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
	for _, name := range []string{forbiddenFile, nowFile, "pods.yaml", "commands"} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte("pods\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nothing := &State{}
	if err := Record(t.Context(), &rest.Config{Host: nothing.Serve(t)}, directory, now); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{forbiddenFile: false, "pods.yaml": false, nowFile: true, "commands": true} {
		if _, err := os.Stat(filepath.Join(directory, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	state, err := Load(directory)
	if err != nil {
		t.Fatal(err)
	}
	if !state.Now.Equal(now) || len(state.Forbidden) > 0 {
		t.Errorf("recorded at %s, forbidden are %q", state.Now, state.Forbidden)
	}
}
