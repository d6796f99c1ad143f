package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxNodes is how many nodes have an address on the wire.
const maxNodes = 180

// Node is a node of the cluster: a Node object and a network namespace with a
// bridge for the node's pods.
type Node struct {
	*Place
	number   int
	address  netip.Addr
	address6 netip.Addr
	pods     netip.Prefix
	pods6    netip.Prefix

	mu      sync.Mutex // guards the following
	used    map[netip.Addr]bool
	running []*Pod
}

// Address returns the node's address.
func (n *Node) Address() string { return n.address.String() }

// Address6 returns the node's IPv6 address.
func (n *Node) Address6() string { return n.address6.String() }

// AddressPort returns the node's address with a port, for Dial.
func (n *Node) AddressPort(port int) string {
	return netip.AddrPortFrom(n.address, uint16(port)).String() //nolint:gosec // ports fit
}

// AddressPort6 returns the node's IPv6 address with a port, for Dial.
func (n *Node) AddressPort6(port int) string {
	return netip.AddrPortFrom(n.address6, uint16(port)).String() //nolint:gosec // ports fit
}

// PodCIDR returns the range of the node's pods.
func (n *Node) PodCIDR() string { return n.pods.String() }

// PodCIDR6 returns the IPv6 range of the node's pods.
func (n *Node) PodCIDR6() string { return n.pods6.String() }

// AddNode adds a node to the cluster.
func (c *Cluster) AddNode(ctx context.Context) (*Node, error) {
	if c.options.RealNodes {
		return nil, errors.New("the nodes of this cluster have kubelets; add them by package kubelets")
	}
	c.adding.Lock()
	defer c.adding.Unlock()
	number := len(c.Nodes()) + 1
	if number > maxNodes {
		return nil, fmt.Errorf("a cluster has %d nodes at most", maxNodes)
	}
	n := &Node{
		number:  number,
		address: nodeAddress(number), address6: nodeAddress6(number),
		pods: podRange(number), pods6: podRange6(number),
		used: map[netip.Addr]bool{},
	}
	name := fmt.Sprintf("node-%d", number)
	var err error
	if n.Place, err = c.newPlace(name, name); err != nil {
		return nil, err
	}
	if err := n.buildNetwork(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.nodes = append(c.nodes, n)
	c.mu.Unlock()
	return n, n.Register(ctx)
}

// buildNetwork joins the node to the wire, makes its bridge for pods, and
// routes between its pods and those of the other nodes.
func (n *Node) buildNetwork() error {
	c := n.cluster
	if err := c.joinWire(n.Place, netip.PrefixFrom(n.address, 24).String(), netip.PrefixFrom(n.address6, 64).String()); err != nil {
		return err
	}
	err := n.links(func(h *netlink.Handle) error {
		return addBridge(h, podBridge, netip.PrefixFrom(n.gateway(), 24).String(), netip.PrefixFrom(n.gateway6(), 64).String())
	})
	if err != nil {
		return err
	}
	err = n.setSysctls(map[string]string{
		"net/ipv4/ip_forward":                            "1",
		"net/ipv6/conf/all/forwarding":                   "1",
		"net/ipv4/conf/all/rp_filter":                    "0",
		"net/ipv4/conf/eth0/rp_filter":                   "0",
		"net/ipv4/conf/" + podBridge + "/rp_filter":      "0",
		"net/ipv4/conf/all/send_redirects":               "0",
		"net/ipv4/conf/eth0/send_redirects":              "0",
		"net/ipv4/conf/" + podBridge + "/send_redirects": "0",
	})
	if err != nil {
		return err
	}
	// The API server answers pods, too.
	if err := c.control.routeTo(n); err != nil {
		return err
	}
	for _, other := range c.Nodes() {
		if other == n { // a reboot
			continue
		}
		if err := errors.Join(n.routeTo(other), other.routeTo(n)); err != nil {
			return err
		}
	}
	return nil
}

// PodGateway returns the node's address on the bridge of its pods, which pods see
// where the node masquerades what goes to them.
func (n *Node) PodGateway() string { return n.gateway().String() }

// gateway is the node's address on the bridge of its pods.
func (n *Node) gateway() netip.Addr { return n.pods.Addr().Next() }

// gateway6 is the node's IPv6 address there.
func (n *Node) gateway6() netip.Addr { return n.pods6.Addr().Next() }

// routeTo sends what is for a node's pods to that node.
func (p *Place) routeTo(n *Node) error {
	return errors.Join(p.RouteTo(n.pods, n.address), p.RouteTo(n.pods6, n.address6))
}

// Register creates the Node object, as a kubelet does when it starts. AddNode
// has done it; it is of use again after the object was deleted.
func (n *Node) Register(ctx context.Context) error {
	labels := map[string]string{corev1.LabelOSStable: "linux", corev1.LabelHostname: n.name}
	if zones := n.cluster.options.Zones; len(zones) > 0 {
		labels[corev1.LabelTopologyZone] = zones[(n.number-1)%len(zones)]
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: labels},
		Spec:       corev1.NodeSpec{PodCIDR: n.PodCIDR(), PodCIDRs: []string{n.PodCIDR(), n.PodCIDR6()}},
	}
	if err := n.cluster.client.Create(ctx, node); err != nil {
		return fmt.Errorf("registering node %s: %w", n.name, err)
	}
	before := client.MergeFrom(node.DeepCopy())
	now := metav1.Now()
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: n.Address()},
		{Type: corev1.NodeInternalIP, Address: n.Address6()},
		{Type: corev1.NodeHostName, Address: n.name},
	}
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
		Message: "a network namespace stands for this node", LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	if err := n.cluster.client.Status().Patch(ctx, node, before); err != nil {
		return fmt.Errorf("registering node %s: %w", n.name, err)
	}
	return nil
}

// takeAddress reserves an address for a pod: the desired one or the lowest free.
func (n *Node) takeAddress(desired string) (netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if desired != "" {
		addr, err := netip.ParseAddr(desired)
		if err != nil {
			return addr, err
		}
		if !n.pods.Contains(addr) || n.used[addr] {
			return addr, fmt.Errorf("%s is not free in %s, the range of %s", addr, n.pods, n.name)
		}
		n.used[addr] = true
		return addr, nil
	}
	for addr := n.gateway().Next(); n.pods.Contains(addr.Next()); addr = addr.Next() {
		if !n.used[addr] {
			n.used[addr] = true
			return addr, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no address is free in %s, the range of %s", n.pods, n.name)
}

func (n *Node) freeAddress(addr netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.used, addr)
}

// forget drops a place that is removed before the cluster is.
func (c *Cluster) forget(p *Place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places = slices.DeleteFunc(c.places, func(q *Place) bool { return q == p })
}
