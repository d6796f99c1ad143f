package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

const (
	mostLines   = 12000
	mostColumns = 160
)

// TestStatesAreCompact: the recorded states are as the command compact writes them, and
// testdata is short enough for a review.
func TestStatesAreCompact(t *testing.T) {
	t.Parallel()
	all, err := recorded.LoadAll(states)
	if err != nil {
		t.Fatal(err)
	}
	again := t.TempDir()
	if err := recorded.Store(again, all); err != nil {
		t.Fatal(err)
	}
	for name := range all {
		got, want := read(t, filepath.Join(states, name+".yaml")), read(t, filepath.Join(again, name+".yaml"))
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not compact: go run ./test/recorded/cmd/compact -to cmd/kubectl-nodeproxy/testdata/states", name)
		}
		for line := range strings.Lines(string(got)) {
			if len(line) > mostColumns {
				t.Errorf("%s has a line of %d columns: %s", name, len(line), line)
			}
		}
	}
	lines := 0
	err = filepath.WalkDir("testdata", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		lines += bytes.Count(read(t, path), []byte("\n"))
		return nil
	})
	if err != nil || lines > mostLines {
		t.Errorf("testdata has %d lines, more than the %d that can be reviewed: %v", lines, mostLines, err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
