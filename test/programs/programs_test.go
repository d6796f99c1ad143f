package programs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

func TestIntoTakesWhatWasBuilt(t *testing.T) {
	built, dir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(built, "nodeproxy-agent"), []byte("built before"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	t.Setenv(programs.Variable, built)
	t.Setenv("PATH", "") // nothing may be built
	for range 2 {        // a second suite may use the same directory
		if err := programs.Into(t.Context(), dir, programs.Agent); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(filepath.Join(dir, "nodeproxy-agent"))
	if err != nil || string(got) != "built before" {
		t.Errorf("the program is %q, %v", got, err)
	}
	err = programs.Into(t.Context(), dir, programs.Agent, programs.Controller)
	if err == nil || !strings.Contains(err.Error(), "nodeproxy-controller") {
		t.Errorf("a program that was not built: %v, want an error that names it", err)
	}
}

func TestIntoBuilds(t *testing.T) {
	t.Setenv(programs.Variable, "")
	dir := t.TempDir()
	if err := programs.Into(t.Context(), dir, "github.com/nodeproxy-io/nodeproxy/test/cluster/cmd/pause"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "pause")); err != nil || info.Mode()&0o111 == 0 {
		t.Errorf("no program was built: %v, %v", info, err)
	}
	err := programs.Into(t.Context(), dir, "github.com/nodeproxy-io/nodeproxy/cmd/none")
	if err == nil || !strings.Contains(err.Error(), "cmd/none") {
		t.Errorf("a package that does not exist: %v", err)
	}
}
