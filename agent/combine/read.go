package combine

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// maxProblems bounds what is reported of one Service.
const maxProblems = 10

// reader parses one family's part of a Service and notes what it cannot use.
type reader struct {
	family   dataplane.Family
	problems []string
	// localReady are the addresses of ready endpoints on this node.
	localReady map[netip.Addr]struct{}
}

func (r *reader) report(format string, args ...any) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, fmt.Sprintf(format, args...))
	}
}

// addrs parses addresses of the family, in the order of texts, each once.
func (r *reader) addrs(field string, texts []string) []netip.Addr {
	var addrs []netip.Addr
	for i, text := range texts {
		addr, err := netip.ParseAddr(text)
		if err != nil || !usable(addr) {
			r.report("%s[%d]: %q is not a usable IP address; skipped", field, i, text)
			continue
		}
		if r.family.Of(addr) {
			addrs = append(addrs, addr)
		}
	}
	return eachOnce(addrs)
}

func usable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast()
}

// sourcedPort is a port and what it was read from.
type sourcedPort struct {
	dataplane.Port
	source *v1alpha1.ServicePort
}

// ports reads names and numbers of the ports, without endpoints.
func (r *reader) ports(rules *v1alpha1.ServiceProxyRulesSpec) []sourcedPort {
	ports := make([]sourcedPort, 0, len(rules.Ports))
	var taken takenPorts
	if len(rules.Ports) > 1 {
		taken = takenPorts{}
	}
	for i := range rules.Ports {
		source := &rules.Ports[i]
		field := fmt.Sprintf("spec.ports[%d]", i)
		port, problem := readPort(source)
		if problem == "" {
			problem = taken.take(&port, field)
		}
		if problem != "" {
			r.report("%s: %s; the port is skipped", field, problem)
			continue
		}
		ports = append(ports, sourcedPort{Port: port, source: source})
	}
	return ports
}

func readPort(source *v1alpha1.ServicePort) (dataplane.Port, string) {
	port := dataplane.Port{Name: source.Name, Protocol: source.Protocol}
	// The name ends up in comments of rules: nothing but a proper name may.
	if source.Name != "" && len(validation.IsDNS1123Label(source.Name)) > 0 {
		return port, fmt.Sprintf("name %q is not a DNS label", source.Name)
	}
	switch source.Protocol {
	case v1alpha1.ProtocolTCP, v1alpha1.ProtocolUDP, v1alpha1.ProtocolSCTP:
	default:
		return port, fmt.Sprintf("protocol %q is none of TCP, UDP and SCTP", source.Protocol)
	}
	var ok bool
	if port.Port, ok = toPort(source.Port); !ok {
		return port, fmt.Sprintf("port %d is not 1 to 65535", source.Port)
	}
	if source.NodePort != 0 {
		if port.NodePort, ok = toPort(source.NodePort); !ok {
			return port, fmt.Sprintf("nodePort %d is not 1 to 65535", source.NodePort)
		}
	}
	return port, ""
}

// takenPorts has the field of the port that has a name, a port or a NodePort of a protocol.
type takenPorts map[takenPort]string

type takenPort struct {
	what     string // the field of a port
	name     string
	number   uint16
	protocol v1alpha1.Protocol
}

// take enters a port, or says how it contradicts one before it. In nil none is entered.
func (t takenPorts) take(p *dataplane.Port, field string) (problem string) {
	if t == nil {
		return ""
	}
	keys := []takenPort{{what: "name", name: p.Name, protocol: p.Protocol}, {what: "port", number: p.Port, protocol: p.Protocol}}
	if p.NodePort != 0 {
		keys = append(keys, takenPort{what: "nodePort", number: p.NodePort, protocol: p.Protocol})
	}
	for _, k := range keys {
		if other, taken := t[k]; taken {
			return fmt.Sprintf("%s has the same %s and protocol", other, k.what)
		}
	}
	for _, k := range keys {
		t[k] = field
	}
	return ""
}

// members reads this node's endpoints of the port.
func (r *reader) members(from []v1alpha1.PortLocalEndpoints, port *dataplane.Port) []netip.AddrPort {
	var found []endpoint
	for i := range from {
		if from[i].Name != port.Name || from[i].Protocol != port.Protocol {
			continue
		}
		for _, text := range from[i].Endpoints {
			if e, ok := r.endpoint(text); ok {
				found = append(found, e)
			}
		}
	}
	return sortedEndpoints(found)
}

// endpoint is an endpoint with its string form, by which lists are sorted.
type endpoint struct {
	netip.AddrPort
	text string
}

// endpoint parses ip:port. The second result is false for what is no usable
// endpoint of this family.
func (r *reader) endpoint(text string) (endpoint, bool) {
	ap, err := netip.ParseAddrPort(text)
	if err != nil || ap.Port() == 0 || !usable(ap.Addr()) {
		r.report("endpoint %q is not a usable ip:port; skipped", text)
		return endpoint{}, false
	}
	if !r.family.Of(ap.Addr()) {
		return endpoint{}, false
	}
	var buffer [64]byte
	if string(ap.AppendTo(buffer[:0])) != text { // does not allocate
		text = ap.String()
	}
	return endpoint{AddrPort: ap, text: text}, true
}

// sortedEndpoints sorts by string form and takes out what is there twice.
func sortedEndpoints(list []endpoint) []netip.AddrPort {
	if len(list) == 0 {
		return nil
	}
	byText := func(a, b endpoint) int { return strings.Compare(a.text, b.text) }
	if !slices.IsSortedFunc(list, byText) {
		slices.SortFunc(list, byText)
	}
	out := make([]netip.AddrPort, 0, len(list))
	for _, e := range list {
		if n := len(out); n == 0 || out[n-1] != e.AddrPort {
			out = append(out, e.AddrPort)
		}
	}
	return out
}

func toPort(n int32) (uint16, bool) {
	if n < 1 || n > math.MaxUint16 {
		return 0, false
	}
	return uint16(n), true
}
