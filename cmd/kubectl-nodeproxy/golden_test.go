package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/command"
	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	states  = "testdata/states"
	goldens = "testdata/golden"
	// server replaces the address of the test's server in the goldens.
	server = "https://192.0.2.10:6443"
)

// atNoTime is for tests that do not depend on the time.
var atNoTime time.Time

// TestGolden runs the commands of each recorded state of a cluster, and compares their output
// and exit codes.
func TestGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(states, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		known[name] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			goldenState(t, name)
		})
	}
	directories, err := os.ReadDir(goldens)
	if err != nil {
		t.Fatal(err)
	}
	for _, directory := range directories {
		if !known[directory.Name()] {
			t.Errorf("%s belongs to no state: delete it", filepath.Join(goldens, directory.Name()))
		}
	}
}

func goldenState(t *testing.T, name string) {
	state, err := recorded.Load(filepath.Join(states, name))
	if err != nil {
		t.Fatal(err)
	}
	url := state.Serve(t)
	kubeconfig := writeKubeconfig(t, url)
	if len(state.Commands) == 0 {
		t.Fatal("its file lists no commands to run")
	}
	known := map[string]bool{}
	for _, line := range state.Commands {
		args := strings.Fields(line)
		file := strings.NewReplacer("/", ".", ":", ".", "--", "").Replace(strings.Join(args, "_")) + ".txt"
		known[file] = true
		got := strings.ReplaceAll(shown(t, kubeconfig, state.Now, args...), url, server)
		compare(t, filepath.Join(goldens, name, file), got)
	}
	files, err := os.ReadDir(filepath.Join(goldens, name))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !known[file.Name()] {
			t.Errorf("%s belongs to no command: delete it", filepath.Join(goldens, name, file.Name()))
		}
	}
}

// shown returns the command, its output and its exit code.
func shown(t *testing.T, kubeconfig string, now time.Time, args ...string) string {
	t.Helper()
	out, errs, status := execute(t, now, append(args, "--kubeconfig="+kubeconfig)...)
	if status == command.ExitError && out != "" {
		t.Errorf("%s: printed besides an error:\n%s", strings.Join(args, " "), out)
	}
	if status == command.ExitError && strings.Count(errs, "\n") != 1 {
		t.Errorf("%s: the error is not one line: %q", strings.Join(args, " "), errs)
	}
	text := fmt.Sprintf("$ kubectl nodeproxy %s\n%s%s", strings.Join(args, " "), out, errs)
	if status != command.ExitOK {
		text += fmt.Sprintf("[exit code %d]\n", status)
	}
	return text
}

// execute runs the program.
func execute(t *testing.T, now time.Time, args ...string) (out, errs string, status int) {
	t.Helper()
	var toOut, toErr bytes.Buffer
	status = command.Run(t.Context(), args, command.Options{
		In: strings.NewReader(""), Out: &toOut, Err: &toErr, Version: "v0.1.0", Now: func() time.Time { return now }, After: atOnce,
	})
	return toOut.String(), toErr.String(), status
}

// atOnce is a timer without delay.
func atOnce(time.Duration) <-chan time.Time {
	passed := make(chan time.Time, 1)
	passed <- time.Time{}
	return passed
}

func writeKubeconfig(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"recorded": {Server: url}},
		Contexts:       map[string]*clientcmdapi.Context{"recorded": {Cluster: "recorded"}},
		CurrentContext: "recorded",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func compare(t *testing.T, path, got string) {
	t.Helper()
	if *update {
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
		t.Fatalf("no golden: go test ./cmd/kubectl-nodeproxy -update writes it; review it: %v", err)
	}
	if got != string(want) {
		t.Errorf("%s differs: want\n%s\ngot\n%s", path, want, got)
	}
}
