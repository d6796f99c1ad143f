package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// destination is where the packet goes.
type destination struct {
	text      string
	addresses []netip.Addr // in order of preference, of either family
	port      uint16
	protocol  v1alpha1.Protocol
	// object is that of a Service that was named; nil: none was.
	object *v1alpha1.ServiceProxyRules
}

// forms are what --to may be.
const forms = "give IP:PORT, NODE:NODEPORT or NAMESPACE/SERVICE:PORT, and /udp or /sctp behind it where it is not TCP"

// destination reads IP:PORT, NODE:NODEPORT or [NAMESPACE/]SERVICE[:PORT], each with
// a protocol behind it or without.
func (w *world) destination(text string) (*destination, error) {
	if w.service(text) != nil { // NAMESPACE/SERVICE, whatever the Service is called
		return w.toService(text, text, "", "")
	}
	rest, protocol, err := cutProtocol(text)
	if err != nil {
		return nil, err
	}
	d := &destination{text: text, protocol: protocol}
	if a, err := netip.ParseAddrPort(rest); err == nil {
		if a.Port() == 0 {
			return nil, fmt.Errorf("--to %q: 0 is no port: %s", text, forms)
		}
		d.addresses, d.port = []netip.Addr{a.Addr().Unmap()}, a.Port()
	} else if _, err := netip.ParseAddr(strings.Trim(rest, "[]")); err == nil {
		return nil, fmt.Errorf("--to %q has no port (an IPv6 address stands in brackets before it): %s", text, forms)
	} else {
		name, port := rest, ""
		if i := strings.LastIndex(rest, ":"); i >= 0 {
			name, port = rest[:i], rest[i+1:]
		}
		n := w.rulesOf(name)
		if n == nil {
			return w.toService(text, name, port, protocol)
		}
		if d.port, err = parsePort(port); err != nil {
			return nil, fmt.Errorf("--to %q: %q is no node port of node %s: %s", text, port, name, forms)
		}
		if d.addresses = addresses(n.Spec.Node.Addresses); len(d.addresses) == 0 {
			return nil, fmt.Errorf("the node %s has no address in its NodeProxyRules (spec.node.addresses): give one instead of its name", name)
		}
	}
	if d.protocol == "" {
		d.protocol = v1alpha1.ProtocolTCP
	}
	return d, nil
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
		return "", "", fmt.Errorf("--to %q: the protocol %q is none of tcp, udp and sctp", text, text[i+1:])
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

// serviceName reads [NAMESPACE/]SERVICE.
func (w *world) serviceName(text string) dataplane.ServiceName {
	if namespace, name, full := strings.Cut(text, "/"); full {
		return dataplane.ServiceName{Namespace: namespace, Name: name}
	}
	return dataplane.ServiceName{Namespace: w.namespace, Name: text}
}

// service returns the object of [NAMESPACE/]SERVICE, or nil.
func (w *world) service(text string) *v1alpha1.ServiceProxyRules {
	want := w.serviceName(text)
	for i := range w.ServiceRules {
		if name, ok := combine.ServiceOf(w.ServiceRules[i].Name); ok && name == want {
			return &w.ServiceRules[i]
		}
	}
	return nil
}

// toService is a port of a Service by its cluster IPs.
func (w *world) toService(text, service, port string, protocol v1alpha1.Protocol) (*destination, error) {
	name := w.serviceName(service)
	if name.Namespace == "" || name.Name == "" || strings.ContainsAny(name.Name, "/:") {
		return nil, fmt.Errorf("--to %q: %s", text, forms)
	}
	object := w.service(service)
	if object == nil {
		var known []string
		for i := range w.ServiceRules {
			if other, ok := combine.ServiceOf(w.ServiceRules[i].Name); ok {
				known = append(known, other.String())
			}
		}
		if what := w.misnamed(name); what != "" {
			return nil, fmt.Errorf("--to: %s", what)
		}
		what := fmt.Sprintf("no Service %s is proxied", name)
		if !strings.Contains(service, "/") {
			what += ", and there is no node " + service
		}
		return nil, fmt.Errorf("--to: %s%s (kubectl get serviceproxyrules lists what is proxied)", what, cluster.Suggest(name.String(), known))
	}
	d := &destination{text: text, addresses: addresses(object.Spec.ClusterIPs), protocol: protocol, object: object}
	if len(d.addresses) == 0 {
		return nil, fmt.Errorf("the ServiceProxyRules %s have no cluster IP: they are not as a controller writes them", object.Name)
	}
	return d, d.choosePort(object, port)
}

// choosePort finds a port of a Service by number or name, or the only one.
func (d *destination) choosePort(object *v1alpha1.ServiceProxyRules, text string) error {
	ports := object.Spec.Ports
	if len(ports) == 0 && text == "" {
		return fmt.Errorf("the ServiceProxyRules %s have no ports: give one", object.Name)
	}
	number, err := parsePort(text)
	fits := slices.DeleteFunc(slices.Clone(ports), func(p v1alpha1.ServicePort) bool {
		return d.protocol != "" && p.Protocol != d.protocol ||
			text != "" && p.Name != text && (err != nil || p.Port != int32(number))
	})
	switch {
	case len(fits) == 0 && err == nil: // a port that it does not have: that can be traced
		d.port = number
	case len(fits) == 0 || len(fits) > 1 && text == "":
		return fmt.Errorf("--to %q does not name one of the ports of the Service: %s", d.text, portsOf(ports))
	default:
		// Of several protocols at one number the first is TCP, where there is one.
		i := max(0, slices.IndexFunc(fits, func(p v1alpha1.ServicePort) bool { return p.Protocol == v1alpha1.ProtocolTCP }))
		if fits[i].Port < 1 || fits[i].Port > 65535 {
			return fmt.Errorf("the ServiceProxyRules %s have the port %d, which is none", object.Name, fits[i].Port)
		}
		d.port, d.protocol = uint16(fits[i].Port), fits[i].Protocol
	}
	if d.protocol == "" {
		d.protocol = v1alpha1.ProtocolTCP
	}
	return nil
}

func portsOf(ports []v1alpha1.ServicePort) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = fmt.Sprintf("%d/%s", p.Port, strings.ToLower(string(p.Protocol)))
		if p.Name != "" {
			texts[i] += " (" + p.Name + ")"
		}
	}
	return strings.Join(texts, ", ")
}
