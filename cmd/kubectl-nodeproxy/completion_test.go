package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

// TestCompletion runs the completion like a shell.
func TestCompletion(t *testing.T) {
	t.Parallel()
	state, err := recorded.Load(filepath.Join(states, "healthy"))
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := writeKubeconfig(t, state.Serve(t))
	services := "default/kubernetes kube-system/kube-dns shop/balanced shop/db shop/external shop/external-too shop/no-app shop/web"
	for _, tt := range []struct {
		typed []string // the last one is being typed
		want  string
	}{
		{[]string{"st"}, "status"},
		{[]string{"rules", ""}, "node-1 node-2"},
		{[]string{"rules", "node-1", ""}, ""},
		{[]string{"rules", "node-1", "--service", ""}, services},
		{[]string{"rules", "node-1", "-o", ""}, "table wide yaml json"},
		{[]string{"diff", "node-1", ""}, "node-2"},
		{[]string{"diff", "node-1", "node-2", ""}, ""},
		{[]string{"doctor", ""}, services},
		{[]string{"doctor", "shop/web", ""}, ""},
		{[]string{"status", ""}, ""},
		{[]string{"import-kube-proxy", ""}, ""},
	} {
		args := append([]string{"__complete", "--kubeconfig=" + kubeconfig}, tt.typed...)
		out, errs, status := execute(t, state.Now, args...)
		if status != 0 {
			t.Errorf("%q: exit code %d: %s", tt.typed, status, errs)
		}
		var got []string
		for line := range strings.Lines(out) {
			if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(word, ":") {
				got = append(got, word)
			} else if word != ":4" { // no names of files
				t.Errorf("%q: directive %s", tt.typed, word)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%q: %q, not %q", tt.typed, strings.Join(got, " "), tt.want)
		}
	}
}

// TestCompletionWithoutCluster: no suggestions, and no error.
func TestCompletionWithoutCluster(t *testing.T) {
	t.Parallel()
	state, err := recorded.Load(filepath.Join(states, "no-permissions"))
	if err != nil {
		t.Fatal(err)
	}
	out, errs, status := execute(t, state.Now, "__complete", "--kubeconfig="+writeKubeconfig(t, state.Serve(t)), "rules", "")
	if out != ":4\n" || status != 0 || strings.Contains(errs, "allowed") {
		t.Errorf("%d: %q, %q", status, out, errs)
	}
}

// TestCompletionScripts: each shell gets a script that calls the program.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		out, errs, status := execute(t, atNoTime, "completion", shell)
		if status != 0 || !strings.Contains(out, "__complete") {
			t.Errorf("%s: exit code %d: %s", shell, status, errs)
		}
	}
}

// TestVersion: the command prints the same as the flag.
func TestVersion(t *testing.T) {
	t.Parallel()
	const want = "kubectl nodeproxy version v0.1.0\n"
	for _, args := range [][]string{{"version"}, {"--version"}} {
		if out, errs, status := execute(t, atNoTime, args...); out != want || errs != "" || status != 0 {
			t.Errorf("%q: exit code %d, stdout %q, stderr %q", args, status, out, errs)
		}
	}
}
