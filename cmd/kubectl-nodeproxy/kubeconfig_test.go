package main

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// TestNoKubeconfig is for the variables of the process alone, so it does not run beside
// others.
func TestNoKubeconfig(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	out, errs, status := execute(t, atNoTime, "status")
	if want := "error: " + cluster.ErrNoKubeconfig.Error() + "\n"; out != "" || errs != want || status != 2 {
		t.Errorf("exit status %d, printed %q, said %q", status, out, errs)
	}
}
