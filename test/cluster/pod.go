package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Port is a port on which a pod's echo server answers.
type Port struct {
	// Name is optional; Services may refer to it.
	Name string
	// Number is the port and Protocol TCP (also when empty) or UDP.
	Number   int
	Protocol corev1.Protocol
}

// PodSpec describes the pod.
type PodSpec struct {
	// Namespace is "default" when empty. It has to exist.
	Namespace string
	Name      string
	Labels    map[string]string
	// Ports are TCP and UDP on 8080 when empty.
	Ports []Port
	// Address is the pod's IPv4 address, the lowest free one of the node when
	// empty. The IPv6 address follows from it: 10.244.1.7 goes with
	// fd00:10:244:1::7.
	Address string
	// HostNetwork runs the pod in the node's own network namespace.
	HostNetwork bool
	// Unready is for a pod that is not ready from the start.
	Unready bool
}

// Pod is a pod of the cluster: a Pod object and a network namespace with an
// echo server.
type Pod struct {
	*Place
	spec     PodSpec
	node     *Node
	address  netip.Addr
	address6 netip.Addr
	server   *Process
}

// IP returns the pod's address.
func (p *Pod) IP() string { return p.address.String() }

// Address returns the pod's address with a port, for Dial.
func (p *Pod) Address(port int) string {
	return netip.AddrPortFrom(p.address, uint16(port)).String() //nolint:gosec // ports fit
}

// IP6 returns the pod's IPv6 address.
func (p *Pod) IP6() string { return p.address6.String() }

// Address6 returns the pod's IPv6 address with a port, for Dial.
func (p *Pod) Address6(port int) string {
	return netip.AddrPortFrom(p.address6, uint16(port)).String() //nolint:gosec // ports fit
}

// Node returns the node that the pod runs on.
func (p *Pod) Node() *Node { return p.node }

// RunPod runs a pod on the node: its echo server answers before the Pod object
// reports that it is ready.
func (n *Node) RunPod(ctx context.Context, spec PodSpec) (*Pod, error) {
	if spec.Namespace == "" {
		spec.Namespace = metav1.NamespaceDefault
	}
	if len(spec.Ports) == 0 {
		spec.Ports = []Port{{Number: 8080}, {Number: 8080, Protocol: corev1.ProtocolUDP}}
	}
	pod := &Pod{spec: spec, node: n}
	if err := n.run(ctx, pod); err != nil {
		return nil, errors.Join(fmt.Errorf("running pod %s on %s: %w", spec.Name, n.name, err), pod.tearDown())
	}
	n.note(pod)
	return pod, nil
}

func (n *Node) run(ctx context.Context, pod *Pod) error {
	if err := n.buildPodNetwork(pod); err != nil {
		return err
	}
	if err := pod.startServer(ctx); err != nil {
		return err
	}
	object := pod.object()
	if err := n.cluster.client.Create(ctx, object); err != nil {
		return err
	}
	return pod.writeStatus(ctx, object, !pod.spec.Unready)
}

// buildPodNetwork makes the pod's namespace. Its only neighbor is the node, as
// with /32 and /128 addresses all traffic passes the node's rules, also between two pods
// of one node and without the bridge handing packets to iptables.
func (n *Node) buildPodNetwork(pod *Pod) error {
	c := n.cluster
	if pod.spec.HostNetwork {
		place := *n.Place
		place.name = pod.spec.Name
		pod.Place, pod.address, pod.address6 = &place, n.address, n.address6
		return nil
	}
	address, err := n.takeAddress(pod.spec.Address)
	if err != nil {
		return err
	}
	pod.address = address // from here on tearDown frees it
	if pod.Place, err = c.newPlace(pod.spec.Name, "pod-"+pod.spec.Namespace+"-"+pod.spec.Name); err != nil {
		return err
	}
	last := pod.address.As4()[3]
	pod.address6 = numbered6(n.pods6.Addr().As16(), int(last))
	if err := c.connect(n.Place, "veth"+strconv.Itoa(int(last)), podBridge, pod.Place, "eth0"); err != nil {
		return err
	}
	return pod.links(func(h *netlink.Handle) error {
		link, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		// The link address follows from the IP address, so that the node finds
		// the next pod with this IP address at once.
		err = errors.Join(
			h.LinkSetHardwareAddr(link, linkAddress(pod.address.As4())),
			addAddress(h, "eth0", pod.address.String()+"/32"),
			addAddress(h, "eth0", pod.address6.String()+"/128"),
			setUp(h, "eth0"))
		for _, gateway := range []netip.Addr{n.gateway(), n.gateway6()} {
			only := toNet(netip.PrefixFrom(gateway, gateway.BitLen()))
			err = errors.Join(err,
				addRoute(h, &netlink.Route{LinkIndex: link.Attrs().Index, Dst: only, Scope: netlink.SCOPE_LINK}),
				addRoute(h, &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}))
		}
		return err
	})
}

// startServer starts the echo server and waits until it listens.
func (p *Pod) startServer(ctx context.Context) error {
	args := []string{"-name", p.spec.Name}
	for _, port := range p.spec.Ports {
		protocol := "/" + strings.ToLower(string(port.protocol()))
		args = append(args, p.Address(port.Number)+protocol, p.Address6(port.Number)+protocol)
	}
	server, err := p.Start(Command{Name: "echo-" + p.spec.Namespace, Path: p.cluster.echo, Args: args})
	if err != nil {
		return err
	}
	p.server = server
	return server.reportsReady(ctx)
}

func (p Port) protocol() corev1.Protocol {
	if p.Protocol == "" {
		return corev1.ProtocolTCP
	}
	return p.Protocol
}

// object is the Pod object as a user would have written it and a scheduler
// would have placed it.
func (p *Pod) object() *corev1.Pod {
	container := corev1.Container{Name: "echo", Image: "echo"}
	for _, port := range p.spec.Ports {
		container.Ports = append(container.Ports, corev1.ContainerPort{
			Name: port.Name, ContainerPort: int32(port.Number), Protocol: port.protocol(), //nolint:gosec // ports fit
		})
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.spec.Namespace, Name: p.spec.Name, Labels: p.spec.Labels},
		Spec: corev1.PodSpec{
			NodeName:    p.node.name,
			HostNetwork: p.spec.HostNetwork,
			Containers:  []corev1.Container{container},
		},
	}
}

// SetReady writes the pod's Ready condition, as a kubelet does after a probe.
// The echo server answers in any case.
func (p *Pod) SetReady(ctx context.Context, ready bool) error {
	object := &corev1.Pod{}
	if err := p.cluster.client.Get(ctx, p.key(), object); err != nil {
		return fmt.Errorf("changing pod %s: %w", p.name, err)
	}
	return p.writeStatus(ctx, object, ready)
}

func (p *Pod) key() client.ObjectKey {
	return client.ObjectKey{Namespace: p.spec.Namespace, Name: p.spec.Name}
}

func (p *Pod) writeStatus(ctx context.Context, object *corev1.Pod, ready bool) error {
	before := client.MergeFrom(object.DeepCopy())
	now := metav1.Now()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	object.Status.Phase = corev1.PodRunning
	object.Status.PodIP = p.IP()
	object.Status.PodIPs = []corev1.PodIP{{IP: p.IP()}, {IP: p.IP6()}}
	object.Status.HostIP = p.node.Address()
	object.Status.HostIPs = []corev1.HostIP{{IP: p.node.Address()}, {IP: p.node.Address6()}}
	object.Status.Conditions = nil
	for _, c := range []struct {
		kind   corev1.PodConditionType
		status corev1.ConditionStatus
	}{
		{corev1.PodScheduled, corev1.ConditionTrue},
		{corev1.PodInitialized, corev1.ConditionTrue},
		{corev1.ContainersReady, status},
		{corev1.PodReady, status},
	} {
		object.Status.Conditions = append(object.Status.Conditions,
			corev1.PodCondition{Type: c.kind, Status: c.status, LastTransitionTime: now})
	}
	object.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "echo", Image: "echo", Ready: ready, Started: &ready,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
	}}
	if err := p.cluster.client.Status().Patch(ctx, object, before); err != nil {
		return fmt.Errorf("writing the status of pod %s: %w", p.name, err)
	}
	return nil
}

// Terminate asks for the pod's end with a long grace period: its endpoints are
// terminating, and serving while the pod is ready, until Delete.
func (p *Pod) Terminate(ctx context.Context) error {
	return p.deleteObject(ctx, 3600)
}

// Delete removes the Pod object and, once it is gone, the pod itself: nothing
// answers at its address any more.
func (p *Pod) Delete(ctx context.Context) error {
	if err := p.deleteObject(ctx, 0); err != nil {
		return err
	}
	return p.tearDown()
}

// Crash ends the pod's echo server without informing the API server, so that
// connections to the pod are rejected.
func (p *Pod) Crash() error { return p.server.Kill() }

func (p *Pod) deleteObject(ctx context.Context, graceSeconds int64) error {
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.spec.Namespace, Name: p.spec.Name}}
	err := p.cluster.client.Delete(ctx, object, client.GracePeriodSeconds(graceSeconds))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting pod %s: %w", p.name, err)
	}
	return nil
}

// tearDown ends the echo server and removes the namespace and the log.
func (p *Pod) tearDown() error {
	p.node.unnote(p)
	var errs []error
	if p.server != nil {
		errs = append(errs, p.server.Kill(), os.Remove(p.server.Log()))
	}
	if p.spec.HostNetwork {
		return errors.Join(errs...)
	}
	if p.Place != nil {
		p.cluster.forget(p.Place)
		errs = append(errs, p.removeVeth(), p.close())
	}
	if p.address.IsValid() {
		p.node.freeAddress(p.address)
	}
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil })...)
}

// removeVeth removes the pod's link at once; the kernel frees the namespace
// some time later.
func (p *Pod) removeVeth() error {
	return p.node.links(func(h *netlink.Handle) error {
		link, err := h.LinkByName("veth" + strconv.Itoa(int(p.address.As4()[3])))
		if err != nil {
			return nil //nolint:nilerr // it was not made yet
		}
		return h.LinkDel(link)
	})
}
