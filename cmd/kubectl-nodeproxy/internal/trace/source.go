package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// source is who sends the packet.
type source struct {
	text string
	// addresses are its own, in order.
	addresses []netip.Addr
	// node is where it is; empty: not known. Process: it is one of the node, or in its
	// network; pod: it is one.
	node         string
	process, pod bool
}

// source reads an address, the name of a node, or [NAMESPACE/]POD.
func (w *world) source(text string) (*source, error) {
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return &source{text: text, addresses: []netip.Addr{a.Unmap()}}, nil
	}
	if n := w.rulesOf(text); n != nil {
		return &source{text: text, addresses: addresses(n.Spec.Node.Addresses), node: n.Name, process: true}, nil
	}
	namespace, name, full := strings.Cut(text, "/")
	if !full {
		namespace, name = w.namespace, text
	}
	if namespace == "" || name == "" || strings.ContainsAny(name, "/:") {
		return nil, fmt.Errorf("--from %q: give an address, a node, or a pod as NAMESPACE/POD", text)
	}
	for _, u := range w.Unread {
		if u.Kind == cluster.Pods {
			return nil, fmt.Errorf("the pod %s/%s cannot be looked up (give its address instead): %s", namespace, name, u.Why)
		}
	}
	i := slices.IndexFunc(w.Pods, func(p corev1.Pod) bool { return p.Namespace == namespace && p.Name == name })
	if i < 0 {
		var known []string
		for j := range w.Pods {
			known = append(known, w.Pods[j].Namespace+"/"+w.Pods[j].Name)
		}
		what := "there is no pod " + namespace + "/" + name
		if !full {
			what = fmt.Sprintf("there is neither a node %s nor a pod %s/%s", name, namespace, name)
		}
		return nil, fmt.Errorf("--from: %s%s", what, cluster.Suggest(namespace+"/"+name, known))
	}
	return podSource(text, &w.Pods[i])
}

func podSource(text string, pod *corev1.Pod) (*source, error) {
	s := &source{text: text, node: pod.Spec.NodeName, process: pod.Spec.HostNetwork, pod: !pod.Spec.HostNetwork}
	for _, ip := range pod.Status.PodIPs {
		s.addresses = append(s.addresses, addresses([]string{ip.IP})...)
	}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return nil, fmt.Errorf("the pod %s/%s has ended (%s): it sends nothing", pod.Namespace, pod.Name, pod.Status.Phase)
	case len(s.addresses) == 0:
		return nil, fmt.Errorf("the pod %s/%s has no address yet (it is %s): kubectl describe pod -n %s %s says what it waits for",
			pod.Namespace, pod.Name, pod.Status.Phase, pod.Namespace, pod.Name)
	}
	return s, nil
}

// packet is what the source sends to the first address of its families, as it
// arrives at a node.
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
		s.text, to.text, list(s.addresses), list(to.addresses))
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

func list(addresses []netip.Addr) string {
	if len(addresses) == 0 {
		return "no address"
	}
	texts := make([]string, len(addresses))
	for i, a := range addresses {
		texts[i] = a.String()
	}
	return strings.Join(texts, ", ")
}
