package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

// echoPackage is the program that each pod runs.
const echoPackage = "github.com/nodeproxy-io/nodeproxy/test/cluster/cmd/echo"

// Options configure the cluster.
type Options struct {
	// Nodes is how many nodes there are from the start; AddNode adds more.
	Nodes int
	// Zones, if given, are the zones of the nodes, one after the other and then
	// from the first again.
	Zones []string
	// Scheme is for Client; the built-in kinds when nil.
	Scheme *kruntime.Scheme
	// APIServerArgs are added to kube-apiserver's command line.
	APIServerArgs []string
	// RealNodes is for nodes that are machines with kubelets: the control plane has
	// a scheduler and all controllers and grants kubelets what they need. No node
	// is made from the start, and AddNode cannot be used; see NewMachine. Package
	// kubelets does the rest.
	RealNodes bool
	// Programs is a directory that Build has filled. Without it, programs of this
	// repository are built as they are needed.
	Programs string
	// NoControllers leaves kube-controller-manager out, for a test that writes
	// EndpointSlices itself.
	NoControllers bool
	// Progress is where a first build of the control plane reports.
	Progress io.Writer
	// Keep lets the cluster's processes live when this process ends, which is
	// for Leave. Without it they end with this process in any case.
	Keep bool
}

// Cluster is a running cluster. Its methods may be called concurrently.
type Cluster struct {
	options Options
	slot    slot
	starter *starter
	bin     string // directory of the control plane's programs
	echo    string // path of the echo server
	pki     *pki
	config  *rest.Config
	client  client.Client
	control *Place
	outside *Place

	stopOnce sync.Once
	stopErr  error
	unwatch  func() bool // ends the watch over the context of Start

	making  sync.RWMutex // held for reading while something is made
	stopped bool         // guarded by making: nothing more is made

	adding sync.Mutex // one node is added at a time

	mu       sync.Mutex // guards the following
	places   []*Place
	nodes    []*Node
	machines []*Machine
	// programs are those of the control plane that run.
	programs map[binaries.Program]*Process
}

// make calls f, which makes something that Stop has to find, unless the cluster
// is stopped already.
func (c *Cluster) make(f func() error) error {
	c.making.RLock()
	defer c.making.RUnlock()
	if c.stopped {
		return errors.New("the cluster is stopped")
	}
	return f()
}

// end waits for what is being made and lets nothing more be made.
func (c *Cluster) end() {
	c.making.Lock()
	defer c.making.Unlock()
	c.stopped = true
}

// Start starts a cluster and waits until its API server answers and its nodes
// exist. What killed runs left is removed first. When ctx ends the cluster is
// removed, as by Stop.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if err := Check(); err != nil {
		return nil, err
	}
	if options.Progress == nil {
		options.Progress = io.Discard
	}
	if options.Scheme == nil {
		options.Scheme = scheme.Scheme
	}
	programs := binaries.ControlPlane()
	if options.RealNodes {
		programs = append(programs, binaries.RealNodes()...)
	}
	bin, err := binaries.Ensure(ctx, options.Progress, programs...)
	if err != nil {
		return nil, err
	}
	s, err := acquire(ctx)
	if err != nil {
		return nil, err
	}
	c := &Cluster{options: options, slot: s, bin: bin, starter: newStarter(), programs: map[binaries.Program]*Process{}}
	c.unwatch = context.AfterFunc(ctx, func() { _ = c.Stop() })
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a cluster: %w", err), c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.buildWire(); err != nil {
		return err
	}
	if err := c.startControlPlane(ctx); err != nil {
		return err
	}
	if c.options.RealNodes {
		return c.provide(ctx, c.nodeinitPath(), nodeinitPackage)
	}
	c.echo = filepath.Join(c.slot.dir(), "echo")
	if err := c.provide(ctx, c.echo, echoPackage); err != nil {
		return err
	}
	for range c.options.Nodes {
		if _, err := c.AddNode(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Build makes what a cluster needs, so that it can start where nothing can be
// built: the control plane's programs in the user's cache, and those of this
// repository in a directory, for Options.Programs. Programs besides are those that
// only comparisons need.
func Build(ctx context.Context, progress io.Writer, directory string, besides ...binaries.Program) error {
	if _, err := binaries.Ensure(ctx, progress, append(binaries.ControlPlane(), besides...)...); err != nil {
		return err
	}
	return programs.Into(ctx, directory, echoPackage, nodeinitPackage)
}

// provide puts a program of this repository at a path in the cluster's directory.
func (c *Cluster) provide(ctx context.Context, path, pkg string) error {
	if c.options.Programs == "" {
		return programs.Into(ctx, filepath.Dir(path), pkg)
	}
	program, err := os.ReadFile(filepath.Join(c.options.Programs, filepath.Base(pkg)))
	if err == nil {
		err = os.WriteFile(path, program, 0o755) //nolint:gosec // it is a program
	}
	if err != nil {
		return fmt.Errorf("taking a program that was built before: %w", err)
	}
	return nil
}

// Stop ends all processes of the cluster and removes everything that it made. It returns
// an error if the log of one reports a data race, or if something is left. It may be called
// more than once.
func (c *Cluster) Stop() error {
	c.stopOnce.Do(func() {
		c.unwatch()
		c.end()
		// The context of Start has ended by now if that is why we stop.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c.leaveMachines()
		c.closePlaces()
		races := dataRaces(c.slot.dir())
		removed := c.slot.remove(ctx)
		c.starter.close()
		if removed == nil {
			c.slot.release()
		}
		c.slot.unlock()
		c.stopErr = errors.Join(races, removed)
	})
	return c.stopErr
}

// Leave lets the cluster run on after this process has ended, until Clean. It
// needs Options.Keep. The Cluster cannot be used afterwards.
func (c *Cluster) Leave() error {
	if !c.options.Keep {
		return errors.New("leaving a cluster needs Options.Keep")
	}
	err := errors.New("the cluster is stopped already")
	c.stopOnce.Do(func() {
		c.unwatch()
		c.end()
		if err = c.slot.keep(); err == nil {
			c.leaveMachines()
			c.closePlaces()
			c.slot.unlock()
			c.starter.close()
		}
	})
	return err
}

// closePlaces gives back the handles of all namespaces, which would keep the
// kernel from freeing them.
func (c *Cluster) closePlaces() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.places {
		p.space.close()
	}
}

// Number is the cluster's number on this machine.
func (c *Cluster) Number() int { return c.slot.number }

// Dir is the cluster's directory, which holds the logs of all its processes. It
// goes away with the cluster.
func (c *Cluster) Dir() string { return c.slot.dir() }

// Assets is the directory with kubectl and the control plane's programs.
func (c *Cluster) Assets() string { return c.bin }

// Client returns an administrator's client.
func (c *Cluster) Client() client.Client { return c.client }

// RESTConfig returns an administrator's access, for use in the root namespace.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// ControlPlane is where the API server runs. A controller is run there as well.
func (c *Cluster) ControlPlane() *Place { return c.control }

// Outside is a client outside the cluster. It reaches the nodes' addresses, and
// load balancers' addresses as RouteFromOutside describes.
func (c *Cluster) Outside() *Place { return c.outside }

// Nodes returns the cluster's nodes.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

// Node returns the cluster's node with the given index, from 0.
func (c *Cluster) Node(i int) *Node { return c.Nodes()[i] }

// Kubectl runs the kubectl of the cluster's version as an administrator and
// returns what it prints.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.control.Exec(ctx, filepath.Join(c.bin, string(binaries.Kubectl)),
		append([]string{"--kubeconfig", c.insideAdmin()}, args...)...)
}
