package combine

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// maxProblems bounds the reported problems of one Service.
const maxProblems = 10

// reader parses one family's part of a Service and records what it cannot use.
type reader struct {
	family   dataplane.Family
	problems []string
	// localReady are the addresses of ready endpoints on this node.
	localReady sets.Set[netip.Addr]
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

// sourcedPort is a port with its position in the source.
type sourcedPort struct {
	dataplane.Port
	position int
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
		ports = append(ports, sourcedPort{Port: port, position: i})
	}
	return ports
}

func readPort(source *v1alpha1.ServicePort) (dataplane.Port, string) {
	port := dataplane.Port{Name: source.Name, Protocol: source.Protocol}
	// Comments of rules contain the name, so it must be valid.
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

// takenPorts has the field of each port, by its name, number and NodePort.
type takenPorts map[takenPort]string

type takenPort struct {
	what     string // the field of a port
	name     string
	number   uint16
	protocol v1alpha1.Protocol
}

// take adds a port, or returns how it contradicts one before it. Nil accepts any port.
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

// portName is by what local endpoints belong to a port.
type portName struct {
	name     string
	protocol v1alpha1.Protocol
}

// byPort sorts a Service's local endpoints, of which each port has one entry, or several.
func byPort(list []v1alpha1.PortLocalEndpoints) map[portName][]*v1alpha1.PortLocalEndpoints {
	out := make(map[portName][]*v1alpha1.PortLocalEndpoints, len(list))
	for i := range list {
		of := portName{list[i].Name, list[i].Protocol}
		out[of] = append(out[of], &list[i])
	}
	return out
}

// localEndpoints reads this node's endpoints of a port.
func (r *reader) localEndpoints(from []*v1alpha1.PortLocalEndpoints) []netip.AddrPort {
	var found []endpoint
	for _, entry := range from {
		for _, text := range entry.Endpoints {
			if e, ok := r.endpoint(text); ok {
				found = append(found, e)
			}
		}
	}
	return sortedEndpoints(found)
}

// endpoint has a string form, by which lists are sorted.
type endpoint struct {
	netip.AddrPort
	text string
}

// endpoint parses ip:port. It returns false for anything but a usable endpoint of this family.
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

// sortedEndpoints sorts by string form and removes duplicates.
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
		out = append(out, e.AddrPort)
	}
	return slices.Compact(out)
}

func toPort(n int32) (uint16, bool) {
	if n < 1 || n > math.MaxUint16 {
		return 0, false
	}
	return uint16(n), true
}

// group is an endpoint group with its usable endpoints of the family for one port.
type group struct {
	source    *v1alpha1.EndpointGroup
	endpoints []endpoint
}

// selectEndpoints fills the port's lists: those for policy Cluster only if some traffic has it, and
// likewise those for policy Local.
func (r *reader) selectEndpoints(svc *dataplane.Service, port *dataplane.Port, from []v1alpha1.PortEndpoints, node Node) {
	ready, terminating := r.groups(from)
	if svc.HealthCheckNodePort != 0 {
		r.addReady(port.LocalEndpoints, ready)
	}
	external := svc.ExternallyAccessible(port)
	if !svc.InternalLocal || external {
		port.Cluster = collect(ready, availableTo(ready, node))
		if len(port.Cluster) == 0 {
			port.Cluster = collect(terminating, all)
		}
		port.Available = len(port.Cluster) > 0
	}
	if svc.InternalLocal || (svc.ExternalLocal && external) {
		port.Available = port.Available || len(ready) > 0 || len(terminating) > 0
		port.Local = among(port.LocalEndpoints, collect(ready, all))
		if len(port.Local) == 0 {
			port.Local = among(port.LocalEndpoints, collect(terminating, all))
		}
	}
	if port.Protocol == v1alpha1.ProtocolUDP {
		port.Serving = collect(slices.Concat(ready, terminating), all)
		if slices.Equal(port.Serving, port.Cluster) {
			port.Serving = port.Cluster // nearly always; saves memory
		}
	}
}

// addReady adds the addresses of local endpoints that are ready. Terminating ones may serve, but load
// balancers should use other nodes.
func (r *reader) addReady(local []netip.AddrPort, ready []group) {
	if r.localReady == nil {
		r.localReady = sets.Set[netip.Addr]{}
	}
	here := sets.New(local...)
	for _, g := range ready {
		for _, e := range g.endpoints {
			if here.Has(e.AddrPort) {
				r.localReady.Insert(e.Addr())
			}
		}
	}
}

// groups splits the groups of a port by state, without those that have nothing of this family.
func (r *reader) groups(from []v1alpha1.PortEndpoints) (ready, terminating []group) {
	for _, its := range from {
		g := group{source: its.EndpointGroup}
		i := 0
		for text := range its.All() {
			if e, ok := r.endpoint(text); ok {
				if g.endpoints == nil {
					g.endpoints = make([]endpoint, 0, len(its.Addresses)-i)
				}
				g.endpoints = append(g.endpoints, e)
			}
			i++
		}
		if len(g.endpoints) == 0 {
			continue
		}
		switch its.Effective() {
		case v1alpha1.EndpointReady:
			ready = append(ready, g)
		case v1alpha1.EndpointTerminating:
			terminating = append(terminating, g)
		default:
			r.report("endpoint state %q is neither Ready nor Terminating; %d endpoints skipped", its.State, len(g.endpoints))
		}
	}
	return ready, terminating
}

// availableTo returns which of the ready groups the node may use by their hints: those for this node,
// if every group has node hints and some group has this one; else likewise by zone; else all.
func availableTo(ready []group, node Node) func(*v1alpha1.EndpointGroup) bool {
	forNode := func(g *v1alpha1.EndpointGroup) bool { return slices.Contains(g.Nodes, node.Name) }
	forZone := func(g *v1alpha1.EndpointGroup) bool { return slices.Contains(g.Zones, node.Zone) }
	nodeHints, zoneHints := true, node.Zone != ""
	forSome := struct{ node, zone bool }{}
	for _, g := range ready {
		nodeHints = nodeHints && len(g.source.Nodes) > 0
		zoneHints = zoneHints && len(g.source.Zones) > 0
		forSome.node = forSome.node || forNode(g.source)
		forSome.zone = forSome.zone || forZone(g.source)
	}
	switch {
	case nodeHints && forSome.node:
		return forNode
	case zoneHints && forSome.zone:
		return forZone
	default:
		return all
	}
}

func all(*v1alpha1.EndpointGroup) bool { return true }

func collect(groups []group, use func(*v1alpha1.EndpointGroup) bool) []netip.AddrPort {
	used := make([][]endpoint, 0, len(groups))
	for _, g := range groups {
		if use(g.source) {
			used = append(used, g.endpoints)
		}
	}
	if len(used) == 1 { // nearly always
		return sortedEndpoints(used[0])
	}
	return sortedEndpoints(slices.Concat(used...))
}

// among returns those of list that are local.
func among(local, list []netip.AddrPort) []netip.AddrPort {
	var out []netip.AddrPort
	here := sets.New(local...)
	for _, e := range list {
		if here.Has(e) {
			out = append(out, e)
		}
	}
	return out
}
