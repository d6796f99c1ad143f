package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// source is the sender of the packet.
type source struct {
	text string
	// addresses are its own, in order.
	addresses []netip.Addr
	// node is where it is; empty: unknown. process: it is one of the node or in the host
	// network; pod: it is a pod.
	node         string
	process, pod bool
}

// source parses an address, the name of a node, or [NAMESPACE/]POD, with or without the
// prefix node/ or pod/.
func (w *world) source(text string) (*source, error) {
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		if why := neverSource(a.Unmap()); why != "" {
			return nil, fmt.Errorf("--from %q is %s, which cannot send packets: use the address of the sender, a node or a pod", text, why)
		}
		return &source{text: text, addresses: []netip.Addr{a.Unmap()}}, nil
	}
	of, name := cutKind(text)
	switch n := w.rulesOf(name); {
	case of == serviceKind:
		return nil, fmt.Errorf("--from %q: a Service sends no packets: use one of its pods, as pod/NAMESPACE/POD", text)
	case n != nil && of != podKind:
		return &source{text: text, addresses: addresses(n.Spec.Node.Addresses), node: n.Name, process: true}, nil
	case of == nodeKind:
		return nil, fmt.Errorf("--from: %w", w.unknownNode(name))
	}
	pod, own, err := w.pod("--from", name, "sends no packets")
	if err != nil {
		return nil, err
	}
	return &source{text: text, addresses: own, node: pod.Spec.NodeName, process: pod.Spec.HostNetwork, pod: !pod.Spec.HostNetwork}, nil
}

// neverSource explains why an address cannot be the source of a connection; empty: it can.
func neverSource(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "the unspecified address"
	case a.IsMulticast():
		return "a multicast address"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address"
	default:
		return ""
	}
}

// findPod returns the pod of [NAMESPACE/]POD, or nil.
func (w *world) findPod(text string) *corev1.Pod {
	name, _ := w.qualified(text)
	i := slices.IndexFunc(w.Pods, func(p corev1.Pod) bool { return p.Namespace == name.Namespace && p.Name == name.Name })
	if i < 0 {
		return nil
	}
	return &w.Pods[i]
}

// pod returns the pod of [NAMESPACE/]POD, the value of a flag, and its addresses. finished is
// what a finished pod does.
func (w *world) pod(flag, text, finished string) (*corev1.Pod, []netip.Addr, error) {
	name, full := w.qualified(text)
	if name.Namespace == "" || name.Name == "" || strings.ContainsAny(name.Name, "/:") {
		return nil, nil, fmt.Errorf("%s %q: use an address, a node, or a pod as NAMESPACE/POD", flag, text)
	}
	if why := w.Unreadable(cluster.Pods); why != "" {
		return nil, nil, fmt.Errorf("the pod %s cannot be read (use its address instead): %s", name, why)
	}
	pod := w.findPod(text)
	if pod == nil {
		var known []string
		for _, p := range w.Pods {
			known = append(known, p.Namespace+"/"+p.Name)
		}
		what := fmt.Sprintf("there is no pod %s", name)
		if !full {
			what = fmt.Sprintf("there is neither a node %s nor a pod %s", name.Name, name)
		}
		return nil, nil, fmt.Errorf("%s: %s%s", flag, what, cluster.Suggest(name.String(), known))
	}
	if cluster.Finished(pod) {
		return nil, nil, fmt.Errorf("the pod %s has finished (%s): it %s", name, pod.Status.Phase, finished)
	}
	var own []netip.Addr
	for _, ip := range pod.Status.PodIPs {
		own = append(own, addresses([]string{ip.IP})...)
	}
	if len(own) > 0 {
		return pod, own, nil
	}
	lacks := "has no address yet"
	if pod.Spec.NodeName == "" {
		lacks = "is not scheduled to a node yet"
	}
	return nil, nil, fmt.Errorf("the pod %s %s (it is %s): kubectl describe pod -n %s %s shows why",
		name, lacks, cmp.Or(pod.Status.Phase, corev1.PodPending), pod.Namespace, pod.Name)
}

// packet is what the source sends to the first address of one of its families, as it arrives
// at a node.
func (s *source) packet(to *destination, node string) (tracer.Packet, error) {
	for _, d := range to.addresses {
		out := tracer.Packet{Protocol: to.protocol, Destination: netip.AddrPortFrom(d, to.port)}
		here := s.node == node
		if s.process && here && (len(s.addresses) == 0 || s.of(d).IsValid()) {
			return out, nil // the kernel chooses its source
		}
		if out.Source = s.of(d); out.Source.IsValid() {
			out.Pod = s.pod && here
			return out, nil
		}
	}
	return tracer.Packet{}, fmt.Errorf("%s and %s are of different IP families: %s, and %s",
		s.text, to.text, cmp.Or(output.Join(s.addresses), "no address"), output.Join(to.addresses))
}

// of returns the source's address of the family of another one.
func (s *source) of(a netip.Addr) netip.Addr {
	for _, own := range s.addresses {
		if own.Is4() == a.Is4() {
			return own
		}
	}
	return netip.Addr{}
}
