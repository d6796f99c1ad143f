package kubelets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
)

// Options configure the cluster.
type Options struct {
	// Nodes is how many nodes there are from the start; AddNode adds more.
	Nodes int
	// Zones, if given, are the zones of the nodes, one after the other and then
	// from the first again.
	Zones []string
	// Taints are those with which kubelets register their nodes.
	Taints []corev1.Taint
	// CoreDNS runs CoreDNS as a Deployment behind the Service kube-dns. Its pods
	// become ready once Services are proxied.
	CoreDNS bool
	// KubeProxy runs kube-proxy as kubeadm does: the DaemonSet kube-proxy in
	// kube-system. The image of nodeproxy-agent must be among Images, because
	// kube-proxy needs the programs that are in it.
	KubeProxy bool
	// Images are docker-archives that each node has from the start, also nodes
	// that are added.
	Images []string
	// Scheme is for Client; the built-in kinds when nil.
	Scheme *kruntime.Scheme
	// APIServerArgs are added to kube-apiserver's command line.
	APIServerArgs []string
	// Progress is where the start reports what takes time.
	Progress io.Writer
	// Keep lets the cluster's processes live when this process ends, which is
	// for Leave. Without it they end with this process in any case.
	Keep bool
}

// Cluster is a running cluster. What it does not do itself, such as Client,
// Kubectl, Outside, Kubeconfig and Stop, the control plane's cluster does.
type Cluster struct {
	*cluster.Cluster
	options Options
	tools   tools

	mu     sync.Mutex // guards the following
	images []string
	nodes  []*Node
}

// Start starts a cluster and waits until its nodes are ready. What killed runs
// left is removed first. When ctx ends the cluster is removed, as by Stop.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Progress == nil {
		options.Progress = io.Discard
	}
	found, err := findTools()
	if err != nil {
		return nil, err
	}
	if options.KubeProxy {
		if _, err := binaries.Ensure(ctx, options.Progress, binaries.KubeProxy); err != nil {
			return nil, err
		}
	}
	base, err := cluster.Start(ctx, cluster.Options{
		RealNodes: true, Scheme: options.Scheme, APIServerArgs: options.APIServerArgs,
		Progress: options.Progress, Keep: options.Keep,
	})
	if err != nil {
		return nil, err
	}
	c := &Cluster{Cluster: base, options: options, tools: found}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a cluster: %w", err), c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	images, err := c.makeImages(ctx)
	if err != nil {
		return err
	}
	c.images = slices.Concat(images, c.options.Images)
	if err := c.addNodes(ctx, c.options.Nodes); err != nil {
		return err
	}
	return c.applyAddons(ctx)
}

// Clean removes the clusters with real nodes whose owner has died, and those that
// were left running on purpose: those with the given numbers, all when none is
// given. Other clusters of package cluster stay, as do those in use by a living
// process. It prints what it removes.
func Clean(ctx context.Context, out io.Writer, numbers ...int) error {
	found, err := cluster.NumbersWithMachines()
	if err != nil {
		return err
	}
	if len(numbers) > 0 {
		found = slices.DeleteFunc(found, func(number int) bool { return !slices.Contains(numbers, number) })
	}
	if len(found) == 0 {
		fmt.Fprintln(out, "No cluster with real nodes to remove.")
		return nil
	}
	return cluster.Clean(ctx, out, found...)
}

// addNodes adds nodes side by side.
func (c *Cluster) addNodes(ctx context.Context, count int) error {
	var nodes []*Node
	for range count {
		node, err := c.newNode()
		if err != nil {
			return err
		}
		nodes = append(nodes, node)
	}
	return forEach(nodes, func(n *Node) error { return n.Start(ctx) })
}

// AddNode adds a node to the cluster and waits until it is ready.
func (c *Cluster) AddNode(ctx context.Context) (*Node, error) {
	node, err := c.newNode()
	if err != nil {
		return nil, err
	}
	return node, node.Start(ctx)
}

// Nodes returns the cluster's nodes, also those that are stopped or deleted.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

// Node returns the cluster's node with the given index, from 0.
func (c *Cluster) Node(i int) *Node { return c.Nodes()[i] }

// Install applies a manifest, such as dist/install.yaml, and waits until the
// kinds that it defines can be used.
func (c *Cluster) Install(ctx context.Context, manifest string) error {
	path, err := filepath.Abs(manifest)
	if err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "-f", path); err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	return err
}

// RouteFromOutside makes the client outside send what is for ip (a load
// balancer's or an external address) to the given node, as a router in front of a
// cluster would. It may be called again to choose another node.
func (c *Cluster) RouteFromOutside(ip string, via *Node) error {
	address, err := netip.ParseAddr(ip)
	if err != nil {
		return fmt.Errorf("routing to a node: %w", err)
	}
	gateway := via.Address()
	if address.Is6() {
		gateway = via.Address6()
	}
	return c.Outside().RouteTo(netip.PrefixFrom(address, address.BitLen()), gateway)
}

// LoadImage gives all nodes the images of a docker-archive, also nodes that are
// added or deleted and started again later.
func (c *Cluster) LoadImage(ctx context.Context, archive string) error {
	c.mu.Lock()
	c.images = append(c.images, archive)
	c.mu.Unlock()
	return forEach(c.Nodes(), func(n *Node) error {
		if !n.On() {
			return nil
		}
		return n.importImage(ctx, archive)
	})
}

func (c *Cluster) allImages() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.images)
}

// PodsReady returns nil when all pods of all namespaces are ready or have ended
// well, else which are not and why.
func (c *Cluster) PodsReady(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := c.Client().List(ctx, pods); err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		if why := notReady(&pods.Items[i]); why != "" {
			errs = append(errs, fmt.Errorf("pod %s/%s is not ready: %s", pods.Items[i].Namespace, pods.Items[i].Name, why))
		}
	}
	return errors.Join(errs...)
}

// notReady returns why a pod is not ready; nothing if it is, or has succeeded.
func notReady(pod *corev1.Pod) string {
	if pod.Status.Phase == corev1.PodSucceeded {
		return ""
	}
	why := string(pod.Status.Phase)
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return ""
		}
		if condition.Status == corev1.ConditionFalse && condition.Message != "" {
			why = condition.Message
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil {
			why = waiting.Reason + " " + waiting.Message
		}
	}
	return why
}

// forEach calls f for all items side by side and joins their errors.
func forEach[T any](items []T, f func(T) error) error {
	errs := make([]error, len(items))
	var wait sync.WaitGroup
	for i, item := range items {
		wait.Go(func() { errs[i] = f(item) })
	}
	wait.Wait()
	return errors.Join(errs...)
}
