package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
)

func main() {
	var s setup
	flag.IntVar(&s.nodes, "nodes", 2, "how many nodes the cluster has")
	flag.BoolVar(&s.kubeProxy, "kube-proxy", false, "run kube-proxy and leave nodeproxy out, to move over by hand")
	flag.StringVar(&s.dist, "dist", "dist", "directory with images/*.tar and install.yaml")
	flag.StringVar(&s.nodeproxy, "nodeproxy", "config/samples/nodeproxy-managed.yaml", "the NodeProxy to create")
	clean := flag.Bool("clean", false, "remove clusters that were left running, and do nothing else: those with the numbers that follow, all without")
	flag.Parse()

	if err := s.runOrClean(*clean, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func (s *setup) runOrClean(clean bool, numbers []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if clean {
		return removeClusters(ctx, numbers)
	}
	return s.run(ctx)
}

// removeClusters removes the clusters with the given numbers, all when none is given.
func removeClusters(ctx context.Context, numbers []string) error {
	only := make([]int, len(numbers))
	for i, text := range numbers {
		number, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not the number of a cluster", text)
		}
		only[i] = number
	}
	return kubelets.Clean(ctx, os.Stdout, only...)
}

// errInterrupted means that the user has ended the start.
var errInterrupted = errors.New("interrupted; what was started is removed")

// setup configures the cluster.
type setup struct {
	nodes     int
	kubeProxy bool
	dist      string
	nodeproxy string
	begin     time.Time
}

// run leaves the cluster running, also if nodeproxy does not get well, so that
// one can look for the reason. Interrupted, it removes everything.
func (s *setup) run(ctx context.Context) error {
	images, err := filepath.Glob(filepath.Join(s.dist, "images", "*.tar"))
	if err != nil {
		return err
	}
	if len(images) == 0 {
		return fmt.Errorf("no images in %s: make them with `make images`, or run `make cluster`", filepath.Join(s.dist, "images"))
	}
	s.begin = time.Now()
	c, err := kubelets.Start(ctx, kubelets.Options{
		Nodes: s.nodes, CoreDNS: true, KubeProxy: s.kubeProxy, Images: images, Progress: os.Stdout, Keep: true,
	})
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	if err != nil {
		return err
	}
	s.report("the nodes are ready")
	err = s.finish(ctx, c)
	if ctx.Err() != nil {
		return errors.Join(errInterrupted, c.Stop())
	}
	fmt.Printf(`
The cluster is running. To look around:
  export KUBECONFIG=%s PATH="%s:$PATH"
  kubectl get nodes,pods -A
  kubectl get nodeproxyrules
  nsenter --net=/run/netns/%s iptables-save
Logs of kubelets and of the control plane: %s
To remove it: make cluster-clean CLUSTERS=%d
`, c.Kubeconfig(), c.Assets(), c.Node(0).Namespace(), c.Dir(), c.Number())
	return errors.Join(err, c.Leave())
}

func (s *setup) report(what string) {
	fmt.Printf("%6.1f s  %s\n", time.Since(s.begin).Seconds(), what)
}

// finish installs nodeproxy, unless kube-proxy runs, and waits until all is well.
func (s *setup) finish(ctx context.Context, c *kubelets.Cluster) error {
	if s.kubeProxy {
		return s.waitForPods(ctx, c)
	}
	if err := c.Install(ctx, filepath.Join(s.dist, "install.yaml")); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "apply", "-f", s.nodeproxy); err != nil {
		return err
	}
	s.report("nodeproxy is installed")
	// Its status is written by an agent on each node that runs.
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=120s", "nodeproxy/cluster"); err != nil {
		return err
	}
	s.report("each node reports the desired state")
	if err := s.waitForPods(ctx, c); err != nil {
		return err
	}
	return show(ctx, c, "get", "nodeproxyrules")
}

func (s *setup) waitForPods(ctx context.Context, c *kubelets.Cluster) error {
	limit, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := c.PodsReady(limit)
		if err == nil {
			s.report("all pods are ready")
			return show(ctx, c, "get", "nodes,pods", "-A")
		}
		select {
		case <-limit.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// show prints what kubectl reports.
func show(ctx context.Context, c *kubelets.Cluster, args ...string) error {
	out, err := c.Kubectl(ctx, args...)
	if err != nil {
		return err
	}
	fmt.Printf("\n%s", out)
	return nil
}
