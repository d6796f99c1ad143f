package ipvs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
)

// limit is how long anything may take to show.
const limit = time.Minute

func TestMain(m *testing.M) {
	ipvskernel.RunTests(wholeRun{m})
}

// wholeRun is the run of all tests, after which their cluster is removed.
type wholeRun struct{ *testing.M }

func (r wholeRun) Run() int {
	status := r.M.Run()
	if err := stopWorld(); err != nil {
		fmt.Fprintln(os.Stderr, "removing the cluster:", err)
		status = max(status, 1)
	}
	return status
}

// world is the cluster of all tests, with nodeproxy switched on.
type world struct {
	cluster    *cluster.Cluster
	nodeproxy  *install.Nodeproxy
	controller *cluster.Process
	agents     []*cluster.Process
}

// started is the world, once a test has asked for it.
var started *world

var startWorld = sync.OnceValues(func() (*world, error) {
	ctx := context.Background() // stopWorld ends it
	config, err := filepath.Abs("../../config")
	if err != nil {
		return nil, err
	}
	scheme, err := install.Scheme()
	if err != nil {
		return nil, err
	}
	w := &world{}
	w.cluster, err = cluster.Start(ctx, cluster.Options{
		Nodes: 2, Scheme: scheme, Progress: os.Stderr, Programs: ipvskernel.Programs(),
	})
	if err != nil {
		return nil, err
	}
	started = w
	w.nodeproxy = &install.Nodeproxy{Cluster: w.cluster, Bin: ipvskernel.Programs(), Config: config}
	if err := errors.Join(w.nodeproxy.Prepare(ctx), w.nodeproxy.Enable(ctx)); err != nil {
		return nil, err
	}
	if w.controller, err = w.nodeproxy.StartController(); err != nil {
		return nil, err
	}
	for _, node := range w.cluster.Nodes() {
		agent, err := w.nodeproxy.StartAgent(node)
		if err != nil {
			return nil, err
		}
		w.agents = append(w.agents, agent)
	}
	return w, install.Until(ctx, limit, w.programmed)
})

func stopWorld() error {
	if started == nil {
		return nil
	}
	return started.cluster.StopAndLook()
}

// programmed returns nil once all nodes hold what is wanted.
func (w *world) programmed(ctx context.Context) error {
	if err := install.Running(append(w.agents, w.controller)...); err != nil {
		return err
	}
	return w.nodeproxy.Programmed(ctx)
}

// use returns the world for a test.
func use(t *testing.T) *world {
	t.Helper()
	if err := ipvskernel.Missing(); err != nil {
		t.Skip(err)
	}
	w, err := startWorld()
	if err != nil {
		t.Fatal(err)
	}
	return w
}
