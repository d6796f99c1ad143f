package trace

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// kind is the prefix of a name: pod in pod/shop/web-1.
type kind string

const (
	anyKind     kind = ""
	podKind     kind = "pod"
	nodeKind    kind = "node"
	serviceKind kind = "svc"
)

// cutKind splits off pod/, node/ or svc/. These may also be namespaces: pod/a is the pod a,
// and pod/a/b the pod b in namespace a.
func cutKind(text string) (kind, string) {
	before, rest, found := strings.Cut(text, "/")
	if !found {
		return anyKind, text
	}
	switch before {
	case "pod", "pods":
		return podKind, rest
	case "node", "nodes":
		return nodeKind, rest
	case "svc", "service", "services":
		return serviceKind, rest
	}
	return anyKind, text
}

// cutPort splits off the port.
func cutPort(text string) (name, port string) {
	if i := strings.LastIndex(text, ":"); i >= 0 {
		return text[:i], text[i+1:]
	}
	return text, ""
}

// lacksPort reports that --to lacks a port.
func lacksPort(text string) error {
	return fmt.Errorf("--to %q has no port: %s", text, forms)
}

// toNode is a node port of a node.
func (w *world) toNode(text, name, port string, protocol v1alpha1.Protocol) (*destination, error) {
	n := w.rulesOf(name)
	if n == nil {
		return nil, fmt.Errorf("--to: %w", w.unknownNode(name))
	}
	if port == "" {
		return nil, lacksPort(text)
	}
	number, err := parsePort(port)
	if err != nil {
		return nil, fmt.Errorf("--to %q: %q is not a node port of node %s: %s", text, port, name, forms)
	}
	d := &destination{text: text, protocol: protocol, port: number, addresses: addresses(n.Spec.Node.Addresses)}
	if len(d.addresses) == 0 {
		return nil, fmt.Errorf("the node %s has no address in its NodeProxyRules (spec.node.addresses): use an address instead of its name", name)
	}
	return d, nil
}

// toPod is a port of a pod, by number.
func (w *world) toPod(text, name, port string, protocol v1alpha1.Protocol) (*destination, error) {
	pod, err := w.pod("--to", name)
	if err != nil {
		return nil, err
	}
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil, fmt.Errorf("the pod %s/%s has finished (%s): it accepts no connections", pod.Namespace, pod.Name, pod.Status.Phase)
	}
	own, err := podAddresses(pod)
	if err != nil {
		return nil, err
	}
	if port == "" {
		return nil, lacksPort(text)
	}
	number, err := parsePort(port)
	if err != nil {
		return nil, fmt.Errorf("--to %q: %q is not a port of a pod, which must be a number from 1 to 65535", text, port)
	}
	return &destination{text: text, protocol: protocol, port: number, addresses: own}, nil
}

// podsRead reports whether pods were read.
func (w *world) podsRead() bool { return len(w.Pods) > 0 }
