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
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

func TestMain(m *testing.M) { ipvskernel.RunTests(wholeRun{m}, binaries.KubeProxy) }

// wholeRun is the run of all tests, after which their cluster is removed.
type wholeRun struct{ *testing.M }

func (r wholeRun) Run() int {
	status := r.M.Run()
	if started == nil {
		return status
	}
	if err := started.StopAndLook(); err != nil {
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
	scheme, err := install.Scheme()
	if err != nil {
		return nil, err
	}
	ctx := context.Background() // wholeRun ends it
	started, err = cluster.Start(ctx, cluster.Options{
		Nodes: 2, Scheme: scheme, Progress: os.Stderr, Programs: ipvskernel.Programs(), NoControllers: true,
	})
	if err != nil {
		return nil, err
	}
	n := &install.Nodeproxy{Cluster: started, Bin: ipvskernel.Programs(), Config: config}
	if err := n.Prepare(ctx); err != nil {
		return nil, err
	}
	_, err = n.StartController()
	return n, errors.Join(err, worlds.MakeNamespaces(ctx, started.Client()))
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
	p, err := newPair(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(end(&p.referenceP), end(&p.testedP), p.reset(context.Background())); err != nil {
			t.Error(err)
		}
	})
	return p
}
