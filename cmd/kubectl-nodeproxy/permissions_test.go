package main

import (
	"path/filepath"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

// TestUnrenderedWithoutPermission: without permission to read Services, trace reports what it
// knows.
func TestUnrenderedWithoutPermission(t *testing.T) {
	t.Parallel()
	state, err := recorded.Load(filepath.Join(states, "healthy"))
	if err != nil {
		t.Fatal(err)
	}
	state.Forbidden = []string{"services"}
	const want = "error: --to: no Service shop/headless is proxied, and there is no such pod (kubectl get serviceproxyrules lists the proxied Services)\n"
	out, errs, status := execute(t, state.Now, "trace", "--from=shop/web-1", "--to=shop/headless:80", "--kubeconfig="+writeKubeconfig(t, state.Serve(t)))
	if out != "" || errs != want || status != 2 {
		t.Errorf("exit code %d, stdout %q, stderr\n%q, want\n%q", status, out, errs, want)
	}
}
