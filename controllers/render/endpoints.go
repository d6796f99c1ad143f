package render

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Problem is an endpoint, a port or a whole slice that cannot be used and is left out.
type Problem struct {
	Slice   string // its name
	Address string // of the endpoint; empty: a port or the whole slice
	Detail  string
}

// String returns a message for events.
func (p Problem) String() string {
	if p.Address == "" {
		return fmt.Sprintf("EndpointSlice %s: %s", p.Slice, p.Detail)
	}
	return fmt.Sprintf("EndpointSlice %s, address %q: %s", p.Slice, p.Address, p.Detail)
}

// MaxProblems bounds the problems of one Service. Any of them could be in each of its endpoints.
const MaxProblems = 10

// problemList collects the first problems of a Service in their order, whatever the order in which
// they are found.
type problemList []Problem

func (l *problemList) report(p Problem) {
	if *l = append(*l, p); len(*l) >= 10*MaxProblems {
		*l = l.first()
	}
}

// first returns the first problems, sorted, without duplicates.
func (l *problemList) first() []Problem {
	slices.SortFunc(*l, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(a.Slice, b.Slice),
			cmp.Compare(a.Address, b.Address),
			cmp.Compare(a.Detail, b.Detail),
		)
	})
	distinct := slices.Compact(*l)
	return distinct[:min(len(distinct), MaxProblems)]
}

// ServiceOf returns the Service of a slice, and false for slices that are not proxied: headless ones
// and those that name no Service.
func ServiceOf(slice *discoveryv1.EndpointSlice) (types.NamespacedName, bool) {
	name := slice.Labels[discoveryv1.LabelServiceName]
	if _, headless := slice.Labels[corev1.IsHeadlessService]; headless || name == "" {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: slice.Namespace, Name: name}, true
}

// portKey matches a slice port with a Service port.
type portKey struct {
	name     string
	protocol v1alpha1.Protocol
}

// endpointKey identifies an endpoint of a Service.
type endpointKey struct {
	port portKey
	addr netip.AddrPort
}

// slicePort is a usable port of a slice.
type slicePort struct {
	key    portKey
	number uint16
}

// of returns the endpoint with this port and an address.
func (p slicePort) of(addr netip.Addr) endpointKey {
	return endpointKey{port: p.key, addr: netip.AddrPortFrom(addr, p.number)}
}

// claim is one mention of an endpoint in a slice.
type claim struct {
	slice    string
	endpoint *discoveryv1.Endpoint
}

// Unset conditions count as ready, serving and not terminating.
func (c claim) ready() bool       { return ptr.Deref(c.endpoint.Conditions.Ready, true) }
func (c claim) serving() bool     { return ptr.Deref(c.endpoint.Conditions.Serving, true) }
func (c claim) terminating() bool { return ptr.Deref(c.endpoint.Conditions.Terminating, false) }
func (c claim) node() string      { return ptr.Deref(c.endpoint.NodeName, "") }

func (c claim) zones() []string {
	hints := ptr.Deref(c.endpoint.Hints, discoveryv1.EndpointHints{})
	return hintNames(hints.ForZones, func(z discoveryv1.ForZone) string { return z.Name })
}

func (c claim) nodes() []string {
	hints := ptr.Deref(c.endpoint.Hints, discoveryv1.EndpointHints{})
	return hintNames(hints.ForNodes, func(n discoveryv1.ForNode) string { return n.Name })
}

// state returns the state to publish, and false for an endpoint that receives no traffic.
func (c claim) state() (v1alpha1.EndpointState, bool) {
	switch {
	case c.ready():
		return v1alpha1.EndpointReady, true
	case c.serving() && c.terminating():
		return v1alpha1.EndpointTerminating, true
	}
	return "", false
}

// Takes reports whether an endpoint receives any traffic.
func Takes(endpoint *discoveryv1.Endpoint) bool {
	_, takes := claim{endpoint: endpoint}.state()
	return takes
}

// sameState reports whether two claims rank alike except for their position.
func (c claim) sameState(o claim) bool {
	return c.ready() == o.ready() && c.serving() == o.serving() && c.terminating() == o.terminating()
}

// beats decides between two claims of one endpoint. kube-proxy only prefers the one that is not
// terminating. Here the content decides the rest, so that both rendered kinds, every restart and
// every order of input agree.
func (c claim) beats(o claim) bool {
	if c.terminating() != o.terminating() {
		return !c.terminating()
	}
	if c.ready() != o.ready() {
		return c.ready()
	}
	if c.serving() != o.serving() {
		return c.serving()
	}
	return cmp.Or(
		cmp.Compare(c.slice, o.slice),
		cmp.Compare(c.node(), o.node()),
		slices.Compare(c.zones(), o.zones()),
		slices.Compare(c.nodes(), o.nodes()),
	) < 0
}

// hintNames returns the non-empty names, sorted, without duplicates.
func hintNames[T any](hints []T, name func(T) string) []string {
	var out []string
	for _, h := range hints {
		if n := name(h); n != "" {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// usablePorts returns the usable ports of a slice, and reports the others.
func usablePorts(slice *discoveryv1.EndpointSlice, report func(Problem)) []slicePort {
	out := make([]slicePort, 0, len(slice.Ports))
	for i := range slice.Ports {
		port, detail := usablePort(&slice.Ports[i])
		if detail != "" {
			report(Problem{Slice: slice.Name, Detail: detail})
			continue
		}
		out = append(out, port)
	}
	return out
}

// usablePort parses a slice port. If it cannot be used, detail gives the reason.
func usablePort(p *discoveryv1.EndpointPort) (port slicePort, detail string) {
	if p.Name == nil {
		return port, "a port without a name field matches no Service port"
	}
	protocol, number := v1alpha1.Protocol(ptr.Deref(p.Protocol, corev1.ProtocolTCP)), ptr.Deref(p.Port, 0)
	switch protocol {
	case v1alpha1.ProtocolTCP, v1alpha1.ProtocolUDP, v1alpha1.ProtocolSCTP:
	default:
		return port, fmt.Sprintf("port %q has the unknown protocol %q", *p.Name, protocol)
	}
	if number == 0 {
		return port, fmt.Sprintf("port %q has no number", *p.Name)
	}
	if number < 1 || number > 65535 {
		return port, fmt.Sprintf("port %q has the number %d, which is outside 1-65535", *p.Name, number)
	}
	return slicePort{key: portKey{name: *p.Name, protocol: protocol}, number: uint16(number)}, ""
}

// usableAddr returns the address of an endpoint. If it cannot be used, detail gives the reason. Only
// the first address counts, as in kube-proxy.
func usableAddr(e *discoveryv1.Endpoint, kind discoveryv1.AddressType) (addr netip.Addr, text, detail string) {
	if len(e.Addresses) == 0 {
		return addr, "", "an endpoint has no address"
	}
	text = e.Addresses[0]
	addr, ok := parseAddr(text)
	if !ok {
		return addr, text, "not an IP address"
	}
	if addr.IsUnspecified() || addr.IsMulticast() { // agents skip it and log that, each of them
		return addr, text, "a multicast or unspecified address"
	}
	if string(familyOf(addr)) != string(kind) {
		return addr, text, "not an address of the slice's addressType"
	}
	return addr, text, ""
}

// eachAddress calls visit for every endpoint of a slice with a usable address, and report for the
// others.
func eachAddress(slice *discoveryv1.EndpointSlice, report func(Problem), visit func(netip.Addr, claim)) {
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		addr, text, detail := usableAddr(e, slice.AddressType)
		if detail != "" {
			report(Problem{Slice: slice.Name, Address: text, Detail: detail})
			continue
		}
		visit(addr, claim{slice: slice.Name, endpoint: e})
	}
}

func ignoreProblem(Problem) {}

// storeWinner stores a claim unless it loses against the stored one.
func storeWinner[K comparable](winners map[K]claim, key K, c claim) {
	if old, ok := winners[key]; !ok || c.beats(old) {
		winners[key] = c
	}
}

// class is what the endpoints of a group share but for their target ports.
type class struct {
	state        v1alpha1.EndpointState
	zones, nodes string
}

// classOf returns the class of an endpoint, and a group of it without addresses; false for an endpoint
// that receives no traffic.
func classOf(c claim) (class, v1alpha1.EndpointGroup, bool) {
	state, ok := c.state()
	if !ok {
		return class{}, v1alpha1.EndpointGroup{}, false
	}
	zones, nodes := c.zones(), c.nodes()
	return class{state, strings.Join(zones, ","), strings.Join(nodes, ",")}, v1alpha1.EndpointGroup{State: state, Zones: zones, Nodes: nodes}, true
}

// groups groups the winners of one port by class, as formatVersion 1 has them.
func groups(winners map[netip.AddrPort]claim) []v1alpha1.EndpointGroup {
	byClass := map[class]*v1alpha1.EndpointGroup{}
	for at, c := range winners {
		class, group, ok := classOf(c)
		if !ok {
			continue
		}
		g := byClass[class]
		if g == nil {
			g = &group
			byClass[class] = g
		}
		g.Addresses = append(g.Addresses, at.String())
	}
	return sorted(byClass, func(class) string { return "" })
}

// target is a port of an endpoint, by the name of the Service's port that it serves.
type target struct {
	name   string
	number uint16
}

// groupsByTarget groups the winners of all ports by class and target ports. An address is in several
// groups if its ports are of several classes, or if it serves one port of the Service by several of its
// own.
func groupsByTarget(winners portWinners) []v1alpha1.EndpointGroup {
	type located struct {
		addr  netip.Addr
		class class
	}
	type groupKey struct {
		class   class
		targets string
	}
	byAddress, examples := map[located][]target{}, map[class]v1alpha1.EndpointGroup{}
	for port, claims := range winners {
		for at, c := range claims {
			class, group, ok := classOf(c)
			if !ok {
				continue
			}
			of := located{at.Addr(), class}
			byAddress[of], examples[class] = append(byAddress[of], target{port.name, at.Port()}), group
		}
	}
	byKey := map[groupKey]*v1alpha1.EndpointGroup{}
	for of, targets := range byAddress {
		for _, row := range rows(targets) {
			key := groupKey{of.class, fmt.Sprint(row)}
			g := byKey[key]
			if g == nil {
				group := examples[of.class]
				group.TargetPorts = make(map[string]int32, len(row))
				for _, t := range row {
					group.TargetPorts[t.name] = int32(t.number)
				}
				if group.State == v1alpha1.EndpointReady {
					group.State = "" // the default
				}
				g = &group
				byKey[key] = g
			}
			g.Addresses = append(g.Addresses, of.addr.String())
		}
	}
	return sorted(byKey, func(k groupKey) string { return k.targets })
}

// rows splits target ports into lists with each name once, in order.
func rows(targets []target) [][]target {
	if len(targets) == 1 {
		return [][]target{targets}
	}
	slices.SortFunc(targets, func(a, b target) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.number, b.number))
	})
	var out [][]target
	row := 0
	for i, t := range targets {
		if row++; i == 0 || t.name != targets[i-1].name {
			row = 0
		}
		if row == len(out) {
			out = append(out, nil)
		}
		out[row] = append(out[row], t)
	}
	return out
}

// sorted returns groups in an order that depends on their content alone.
func sorted[K comparable](groups map[K]*v1alpha1.EndpointGroup, targets func(K) string) []v1alpha1.EndpointGroup {
	keys := slices.SortedFunc(maps.Keys(groups), func(a, b K) int {
		x, y := groups[a], groups[b]
		return cmp.Or(
			cmp.Compare(x.State, y.State),
			slices.Compare(x.Zones, y.Zones),
			slices.Compare(x.Nodes, y.Nodes),
			cmp.Compare(targets(a), targets(b)),
		)
	})
	var out []v1alpha1.EndpointGroup
	for _, key := range keys {
		g := groups[key]
		slices.Sort(g.Addresses)
		out = append(out, *g)
	}
	return out
}
