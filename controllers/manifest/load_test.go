package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, directory string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLoad(t *testing.T) {
	directory := t.TempDir()
	write(t, directory, "a.yaml", "b.yml", "c.json", "readme.md", "kustomization.yaml", "deep/d.yaml", ".git/e.yaml", "only/deep/f.yaml")
	at := func(names ...string) []string {
		for i, name := range names {
			names[i] = filepath.Join(directory, name)
		}
		return names
	}
	for name, c := range map[string]struct {
		names         []string
		recursive     bool
		want, skipped []string
		err           string
	}{
		"directory":        {names: at("."), want: []string{"a.yaml", "b.yml", "c.json"}, skipped: at("deep", "only")},
		"subdirectories":   {names: at("."), recursive: true, want: []string{"a.yaml", "b.yml", "c.json", "deep/d.yaml", "only/deep/f.yaml"}},
		"file":             {names: at("readme.md"), want: []string{"readme.md"}},
		"named twice":      {names: at("a.yaml", ".", "./a.yaml"), want: []string{"a.yaml", "b.yml", "c.json"}, skipped: at("deep", "only")},
		"standard input":   {names: []string{"-"}, want: []string{"from stdin"}},
		"nothing in it":    {names: at(".git/.."), want: []string{"a.yaml", "b.yml", "c.json"}, skipped: at("deep", "only")},
		"only directories": {names: at("only"), err: "contains no file that ends in .yaml, .yml or .json, but directories, which --recursive reads"},
		"no file":          {names: at("none.yaml"), err: "none.yaml"},
		"named and hidden": {names: at(".git"), want: []string{".git/e.yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			files, skipped, err := Load(c.names, c.recursive, strings.NewReader("from stdin"))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range files {
				got = append(got, string(f.Text)) // its name under the directory
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.skipped, skipped); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
}
