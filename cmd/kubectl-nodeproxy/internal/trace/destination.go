package trace

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// destination is the receiver of the packet.
type destination struct {
	text      string
	addresses []netip.Addr // in order of preference, of either family
	port      uint16
	protocol  v1alpha1.Protocol
	// object is that of a named Service; nil: no Service is named.
	object *v1alpha1.ServiceProxyRules
}

// forms are what --to may be.
const forms = "use IP:PORT, NODE:NODEPORT, NAMESPACE/SERVICE:PORT or NAMESPACE/POD:PORT, followed by /udp or /sctp if it is not TCP"

// destination parses IP:PORT, NODE:NODEPORT, [NAMESPACE/]SERVICE[:PORT] or
// [NAMESPACE/]POD:PORT, with or without a protocol. An ambiguous name is a node, then a
// Service, then a pod; the prefix node/, svc/ or pod/ selects one.
func (w *world) destination(text string) (*destination, error) {
	of, named := cutKind(text)
	if (of == anyKind || of == serviceKind) && w.service(named) != nil { // even if its name looks like something else
		return w.toService(text, named, "", "")
	}
	rest, protocol, err := cutProtocol(named)
	if err != nil {
		return nil, err
	}
	name, port := cutPort(rest)
	d := &destination{text: text, protocol: cmp.Or(protocol, v1alpha1.ProtocolTCP)}
	what := "a port of a pod"
	switch {
	case of == anyKind && looksLikeAddress(rest):
		return d, d.setAddress(rest)
	case of == nodeKind || of == anyKind && w.rulesOf(name) != nil:
		what = "a node port of node " + name
		d.addresses, err = w.nodeAddresses(name)
	case of == podKind || of == anyKind && w.service(name) == nil && w.findPod(name) != nil:
		_, d.addresses, err = w.pod("--to", name, "accepts no connections")
	default:
		return w.toService(text, name, port, protocol)
	}
	if err != nil {
		return nil, err
	}
	if port == "" {
		return nil, fmt.Errorf("--to %q has no port: %s", text, forms)
	}
	if d.port, err = parsePort(port); err != nil {
		return nil, fmt.Errorf("--to %q: %q is not %s (a number from 1 to 65535): %s", text, port, what, forms)
	}
	return d, nil
}

// MayBePod reports whether --to can only be a pod, as far as can be determined without the pods.
func MayBePod(o *cluster.Objects, q Question) bool {
	w := &world{Objects: o, namespace: q.Namespace}
	of, named := cutKind(q.To)
	if of != anyKind {
		return of == podKind
	}
	rest, _, err := cutProtocol(named)
	name, _ := cutPort(rest)
	return err == nil && !looksLikeAddress(rest) && w.rulesOf(name) == nil && w.service(name) == nil && w.service(named) == nil
}

// looksLikeAddress reports whether a text is an address, with or without a port.
func looksLikeAddress(text string) bool {
	name, _ := cutPort(text)
	for _, part := range []string{text, name} {
		if _, err := netip.ParseAddr(strings.Trim(part, "[]")); err == nil {
			return true
		}
	}
	return false
}

func (d *destination) setAddress(text string) error {
	a, err := netip.ParseAddrPort(text)
	if err == nil && a.Port() > 0 {
		d.addresses, d.port = []netip.Addr{a.Addr().Unmap()}, a.Port()
		return nil
	}
	if _, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return fmt.Errorf("--to %q has no port (put an IPv6 address in brackets before it): %s", d.text, forms)
	}
	_, port := cutPort(text)
	return fmt.Errorf("--to %q: %s is not a port, which is a number from 1 to 65535: %s", d.text, cmp.Or(port, "nothing"), forms)
}

// nodeAddresses are the addresses of a node that --to names.
func (w *world) nodeAddresses(node string) ([]netip.Addr, error) {
	n := w.rulesOf(node)
	if n == nil {
		return nil, fmt.Errorf("--to: %w", w.unknownNode(node))
	}
	own := addresses(n.Spec.Node.Addresses)
	if len(own) == 0 {
		return nil, fmt.Errorf("the node %s has no address in its NodeProxyRules (spec.node.addresses): use an address instead of its name", node)
	}
	return own, nil
}

// cutProtocol splits off /tcp, /udp or /sctp.
func cutProtocol(text string) (rest string, protocol v1alpha1.Protocol, err error) {
	i := strings.LastIndex(text, "/")
	if i < 0 {
		return text, "", nil
	}
	switch p := v1alpha1.Protocol(strings.ToUpper(text[i+1:])); p {
	case v1alpha1.ProtocolTCP, v1alpha1.ProtocolUDP, v1alpha1.ProtocolSCTP:
		return text[:i], p, nil
	}
	if strings.Contains(text[:i], ":") {
		return "", "", fmt.Errorf("--to %q: the protocol %q is not tcp, udp or sctp", text, text[i+1:])
	}
	return text, "", nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return uint16(n), err
}

// qualified parses [NAMESPACE/]NAME.
func (w *world) qualified(text string) (name dataplane.ServiceName, full bool) {
	if namespace, name, full := strings.Cut(text, "/"); full {
		return dataplane.ServiceName{Namespace: namespace, Name: name}, true
	}
	return dataplane.ServiceName{Namespace: w.namespace, Name: text}, false
}

// service returns the object of [NAMESPACE/]SERVICE, or nil.
func (w *world) service(text string) *v1alpha1.ServiceProxyRules {
	name, _ := w.qualified(text)
	return w.RulesOf(name)
}

// toService is a port of a Service by its cluster IPs.
func (w *world) toService(text, service, port string, protocol v1alpha1.Protocol) (*destination, error) {
	name, full := w.qualified(service)
	if name.Namespace == "" || name.Name == "" || strings.ContainsAny(name.Name, "/:") {
		return nil, fmt.Errorf("--to %q: %s", text, forms)
	}
	object := w.service(service)
	if object == nil {
		what := fmt.Sprintf("no Service %s is proxied", name)
		of, _ := cutKind(text)
		switch node, pod := of == anyKind && !full, of == anyKind && len(w.Pods) > 0; {
		case node && pod:
			what += fmt.Sprintf(", and there is neither a node %s nor such a pod", service)
		case node:
			what += ", and there is no node " + service
		case pod:
			what += ", and there is no such pod"
		}
		return nil, &UnrenderedError{Service: name, what: what + w.SuggestService(name)}
	}
	d := &destination{text: text, addresses: addresses(object.Spec.ClusterIPs), protocol: protocol, object: object}
	if len(d.addresses) == 0 {
		return nil, fmt.Errorf("the ServiceProxyRules %s have no usable cluster IP, so no controller has written them", object.Name)
	}
	return d, d.choosePort(object, port)
}

// UnrenderedError means that --to is, or may be, a Service without ServiceProxyRules. The
// Service itself, which is not among the objects, may show why.
type UnrenderedError struct {
	Service dataplane.ServiceName
	// Node is the one that the packet enters; nil: unknown.
	Node *v1alpha1.NodeProxyRules
	what string
}

// Error implements error.
func (e *UnrenderedError) Error() string {
	return fmt.Sprintf("--to: %s (kubectl get serviceproxyrules lists the proxied Services)", e.what)
}

// choosePort finds a port of a Service by number or name, or the only one.
func (d *destination) choosePort(object *v1alpha1.ServiceProxyRules, text string) error {
	ports := object.Spec.Ports
	number, err := parsePort(text)
	if len(ports) == 0 && err != nil {
		return fmt.Errorf("--to %q: the ServiceProxyRules %s have no ports: use a number", d.text, object.Name)
	}
	fits := slices.DeleteFunc(slices.Clone(ports), func(p v1alpha1.ServicePort) bool {
		return d.protocol != "" && p.Protocol != d.protocol ||
			text != "" && p.Name != text && (err != nil || p.Port != int32(number))
	})
	switch {
	case len(fits) == 0 && err == nil: // an unknown port can be traced, too
		d.port = number
	case len(fits) == 0 || len(fits) > 1 && text == "":
		return fmt.Errorf("--to %q does not specify one of the ports of the Service: %s", d.text, portsOf(ports))
	default:
		// If several protocols have the number, TCP comes first.
		i := max(0, slices.IndexFunc(fits, func(p v1alpha1.ServicePort) bool { return p.Protocol == v1alpha1.ProtocolTCP }))
		if fits[i].Port < 1 || fits[i].Port > 65535 {
			return fmt.Errorf("the ServiceProxyRules %s have the invalid port %d", object.Name, fits[i].Port)
		}
		d.port, d.protocol = uint16(fits[i].Port), fits[i].Protocol
	}
	d.protocol = cmp.Or(d.protocol, v1alpha1.ProtocolTCP)
	return nil
}

func portsOf(ports []v1alpha1.ServicePort) string {
	var texts []string
	for _, p := range ports {
		text := fmt.Sprintf("%d/%s", p.Port, strings.ToLower(string(p.Protocol)))
		if p.Name != "" {
			text += " (" + p.Name + ")"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

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

func cutPort(text string) (name, port string) {
	if i := strings.LastIndex(text, ":"); i >= 0 {
		return text[:i], text[i+1:]
	}
	return text, ""
}
