package main

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// TestNoKubeconfig changes the environment of the process, so it does not run in parallel.
func TestNoKubeconfig(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	out, errs, status := execute(t, atNoTime, "status")
	if want := "error: " + cluster.ErrNoKubeconfig.Error() + "\n"; out != "" || errs != want || status != 2 {
		t.Errorf("exit code %d, stdout %q, stderr %q", status, out, errs)
	}
}
