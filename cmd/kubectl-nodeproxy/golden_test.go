package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/command"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/goldentest"
	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	states  = "testdata/states"
	goldens = "testdata/golden"
	// columns is the width of the terminal whose output the goldens have.
	columns = 120
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
		goldentest.Compare(t, filepath.Join(goldens, name, file), got, *update)
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
	var toOut, toErr bytes.Buffer
	status := command.Run(t.Context(), append(args, "--kubeconfig="+kubeconfig), options(&toOut, &toErr, now, columns))
	out, errs := toOut.String(), toErr.String()
	if status == command.ExitError && out != "" {
		t.Errorf("%s: printed besides an error:\n%s", strings.Join(args, " "), out)
	}
	for line := range strings.Lines(out) {
		if !machineReadable(args) && utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > columns {
			t.Errorf("%s: wider than %d columns: %s", strings.Join(args, " "), columns, line)
		}
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

// machineReadable reports whether a command's output is not for humans alone, and therefore not wrapped.
func machineReadable(args []string) bool {
	return slices.ContainsFunc(args, func(arg string) bool {
		return slices.Contains([]string{"yaml", "json", "wide", "completion"}, arg)
	})
}

// execute runs the program without a terminal.
func execute(t *testing.T, now time.Time, args ...string) (out, errs string, status int) {
	t.Helper()
	var toOut, toErr bytes.Buffer
	status = command.Run(t.Context(), args, options(&toOut, &toErr, now, 0))
	return toOut.String(), toErr.String(), status
}

func options(out, errs io.Writer, now time.Time, width int) command.Options {
	return command.Options{
		In: strings.NewReader(""), Out: out, Err: errs, Version: "v0.1.0", Now: func() time.Time { return now }, After: atOnce, Width: width,
	}
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
