package parity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
	"github.com/nodeproxy-io/nodeproxy/test/parity/beside"
)

func TestMain(m *testing.M) { ipvskernel.RunTests(wholeRun{m}, binaries.KubeProxy) }

// wholeRun is the run of all tests, after which their cluster is removed.
type wholeRun struct{ *testing.M }

func (r wholeRun) Run() int {
	status := r.M.Run()
	if started == nil {
		return status
	}
	if err := started.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "removing the cluster:", err)
		status = max(status, 1)
	}
	return status
}

// started is the cluster of all tests, once one has asked for it.
var started *cluster.Cluster

// startNodeproxy makes a cluster with two nodes, and a controller. Tests use it one
// after the other, because the control plane takes its time.
var startNodeproxy = sync.OnceValues(func() (*install.Nodeproxy, error) {
	config, err := filepath.Abs("../../../config")
	if err != nil {
		return nil, err
	}
	ctx := context.Background() // wholeRun ends it
	n, err := beside.Install(ctx, cluster.Options{Programs: ipvskernel.Programs(), NoControllers: true}, ipvskernel.Programs(), config)
	if err == nil {
		started = n.Cluster
	}
	return n, err
})

// use returns the two nodes for a test, after which they are as they were.
func use(t *testing.T) *pair {
	t.Helper()
	if err := ipvskernel.Missing(); err != nil {
		t.Skip(err)
	}
	n, err := startNodeproxy()
	if err != nil {
		t.Fatal(err)
	}
	two, err := beside.New(n)
	if err != nil {
		t.Fatal(err)
	}
	p, ctx := &pair{two}, context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		if err := errors.Join(p.Stop(), p.OnNodes(ctx, flushScript), p.Clear(ctx)); err != nil {
			t.Error(err)
		}
	})
	return p
}
