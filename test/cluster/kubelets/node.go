package kubelets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// readyTimeout is how long a node may take from its start until it is ready.
const readyTimeout = 3 * time.Minute

// Node is a node of the cluster: a machine with a kubelet and containerd.
type Node struct {
	*cluster.Machine
	cluster *Cluster
	number  int

	mu         sync.Mutex // guards the following
	containerd *cluster.Process
	kubelet    *cluster.Process
	pods       []netip.Prefix
}

// newNode makes a node that is not started.
func (c *Cluster) newNode() (*Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	number := len(c.nodes) + 1
	machine, err := c.NewMachine(fmt.Sprintf("node-%d", number), number)
	if err != nil {
		return nil, err
	}
	n := &Node{Machine: machine, cluster: c, number: number}
	c.nodes = append(c.nodes, n)
	return n, nil
}

// Start starts the node, for the first time or after Stop or Delete, and waits
// until it is ready. After Delete it is a new node of the same name.
func (n *Node) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := n.start(ctx); err != nil {
		return fmt.Errorf("starting %s: %w", n.Name(), err)
	}
	return nil
}

func (n *Node) start(ctx context.Context) error {
	begin := time.Now().Truncate(time.Second) // as the API server keeps times
	if err := n.Boot(ctx); err != nil {
		return err
	}
	if err := n.startContainerd(ctx); err != nil {
		return err
	}
	if err := n.StartKubelet(); err != nil {
		return err
	}
	// The node gets ready with its network, for which it therefore waits until it
	// has all images.
	for _, archive := range n.cluster.allImages() {
		if err := n.importImage(ctx, archive); err != nil {
			return err
		}
	}
	if err := n.until(ctx, n.hasPodRanges); err != nil {
		return err
	}
	if err := errors.Join(n.routePods(), n.writeCNI()); err != nil {
		return err
	}
	return n.until(ctx, func(node *corev1.Node) error { return readySince(node, begin) })
}

// tooEarly ends a kubelet that asks containerd before it has found its pods again after a restart,
// which takes longer than the first answer to ctr. A service manager starts such a kubelet again.
const tooEarly = "server is not initialized yet"

// until waits until f accepts the Node object.
func (n *Node) until(ctx context.Context, f func(*corev1.Node) error) error {
	for {
		node := &corev1.Node{}
		err := n.cluster.Client().Get(ctx, client.ObjectKey{Name: n.Name()}, node)
		if err == nil {
			err = f(node)
		}
		if err == nil {
			return nil
		}
		for _, process := range []*cluster.Process{n.Containerd(), n.Kubelet()} {
			select {
			case <-process.Done():
				if process != n.Kubelet() || !strings.Contains(process.Tail(), tooEarly) {
					return fmt.Errorf("a process of the node has ended; %s", process.Tail())
				}
				if err := n.StartKubelet(); err != nil {
					return err
				}
			default:
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w; %s", ctx.Err(), err, n.Kubelet().Tail())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (n *Node) hasPodRanges(node *corev1.Node) error {
	if len(node.Spec.PodCIDRs) == 0 {
		return errors.New("the controller manager has given the node no ranges for pods yet")
	}
	var pods []netip.Prefix
	for _, text := range node.Spec.PodCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		pods = append(pods, prefix)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods = pods
	return nil
}

// readySince reports whether the kubelet that was started at the given time reports
// that the node is ready.
func readySince(node *corev1.Node, begin time.Time) error {
	for _, condition := range node.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		if condition.Status == corev1.ConditionTrue && !condition.LastHeartbeatTime.Time.Before(begin) {
			return nil
		}
		return fmt.Errorf("the node is not ready: %s", condition.Message)
	}
	return errors.New("the node has not reported yet")
}

// PodRanges returns the ranges of the node's pods, IPv4 first.
func (n *Node) PodRanges() []netip.Prefix {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pods
}

// routePods makes the others on the wire send what is for the node's pods to the
// node, and the node send what is for theirs to them.
func (n *Node) routePods() error {
	errs := []error{n.isReachedFrom(n.cluster.ControlPlane())}
	for _, other := range n.cluster.Nodes() {
		if other != n && other.On() {
			errs = append(errs, n.isReachedFrom(other.Place), other.isReachedFrom(n.Place))
		}
	}
	return errors.Join(errs...)
}

// isReachedFrom gives a place routes to the node's pods, once there are any.
func (n *Node) isReachedFrom(place *cluster.Place) error {
	for _, pods := range n.PodRanges() {
		gateway := n.Address()
		if pods.Addr().Is6() {
			gateway = n.Address6()
		}
		if err := place.RouteTo(pods, gateway); err != nil {
			return err
		}
	}
	return nil
}

// Containerd returns the node's running or last containerd.
func (n *Node) Containerd() *cluster.Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.containerd
}

// Kubelet returns the node's running or last kubelet.
func (n *Node) Kubelet() *cluster.Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kubelet
}

// Stop ends all that runs on the node at once, as pulling the plug does. Node and
// Pod objects stay as they are. It may be stopped already.
func (n *Node) Stop() error { return n.PowerOff() }

// Delete stops the node, erases its disk and deletes the Node object.
func (n *Node) Delete(ctx context.Context) error {
	if err := errors.Join(n.PowerOff(), n.EraseDisk()); err != nil {
		return err
	}
	err := n.cluster.Client().Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name()}})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting node %s: %w", n.Name(), err)
	}
	return nil
}

// importImage gives the node the images of a docker-archive.
func (n *Node) importImage(ctx context.Context, archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("loading an image: %w", err)
	}
	defer file.Close()
	if _, err := n.Exec(ctx, file, n.cluster.tools.ctr, "--namespace", "k8s.io", "images", "import", "-"); err != nil {
		return fmt.Errorf("loading the image %s: %w", filepath.Base(archive), err)
	}
	return nil
}
