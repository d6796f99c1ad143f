package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// service makes a Service with one UDP port "dns". The text lists what it has:
// "ip 10.96.0.10 ext 192.0.2.50 lb 198.51.100.9 port 53 np 30053 ep 10.244.0.3:53".
// tcp makes the port a TCP port; lost takes an address off the port.
func service(name, text string) *dataplane.Service {
	s := &dataplane.Service{Name: dataplane.ServiceName{Namespace: "shop", Name: name}}
	p := dataplane.Port{Name: "dns", Protocol: v1alpha1.ProtocolUDP}
	words := strings.Fields(text)
	for i := 0; i < len(words); i++ {
		if words[i] == "tcp" {
			p.Protocol = v1alpha1.ProtocolTCP
			continue
		}
		value := words[i+1]
		switch words[i] {
		case "ip":
			s.ClusterIP = netip.MustParseAddr(value)
		case "ext":
			s.ExternalIPs = append(s.ExternalIPs, netip.MustParseAddr(value))
		case "lb":
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, netip.MustParseAddr(value))
		case "lost":
			p.Lost = append(p.Lost, netip.MustParseAddr(value))
		case "port":
			p.Port = number(value)
		case "np":
			p.NodePort = number(value)
		case "ep":
			p.Serving = append(p.Serving, netip.MustParseAddrPort(value))
			p.Cluster = p.Serving
		default:
			panic("service: unknown word " + words[i])
		}
		i++
	}
	s.Ports = []dataplane.Port{p}
	return s
}

func number(text string) uint16 {
	var n uint16
	if _, err := fmt.Sscan(text, &n); err != nil {
		panic(err)
	}
	return n
}

// flow makes a flow of some client.
func flow(destination, endpoint string) Flow {
	client := netip.MustParseAddrPort("10.244.7.7:40000")
	if strings.HasPrefix(destination, "[") {
		client = netip.MustParseAddrPort("[2001:db8:7::7]:40000")
	}
	return Flow{Protocol: v1alpha1.ProtocolUDP, Source: client, Destination: netip.MustParseAddrPort(destination),
		ReplySource: netip.MustParseAddrPort(endpoint), ReplyDestination: client}
}

func node(edit ...func(*v1alpha1.ProxySettings)) dataplane.Node {
	settings := v1alpha1.CompleteSettings(nil)
	for _, e := range edit {
		e(settings)
	}
	return dataplane.Node{Settings: settings, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.21")}}
}

// addressesOf are those of the node's interfaces.
var addressesOf = map[dataplane.Family][]netip.Addr{
	dataplane.IPv4: {netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.21"), netip.MustParseAddr("10.244.1.1")},
	dataplane.IPv6: {netip.MustParseAddr("::1"), netip.MustParseAddr("2001:db8::21")},
}

// ruleset makes a set of Services, of which the given ones are dirty.
func ruleset(full bool, services []*dataplane.Service, dirty ...string) *dataplane.Ruleset {
	r := &dataplane.Ruleset{Node: node(), Full: full, Services: map[dataplane.ServiceName]*dataplane.Service{}, Dirty: map[dataplane.ServiceName]struct{}{}}
	for _, s := range services {
		r.Services[s.Name] = s
	}
	for _, name := range dirty {
		r.Dirty[dataplane.ServiceName{Namespace: "shop", Name: name}] = struct{}{}
	}
	return r
}

type list []*dataplane.Service

// planFor is the plan after a first set of Services and a second one.
func planFor(family dataplane.Family, first, second list, rejected ...string) *plan {
	s := newState(v1alpha1.ProtocolUDP)
	s.commit(ruleset(true, first), dataplane.Result{})
	s.take()
	result := dataplane.Result{Rejected: map[dataplane.ServiceName]string{}}
	for _, name := range rejected {
		result.Rejected[dataplane.ServiceName{Namespace: "shop", Name: name}] = "line 3 failed"
	}
	r := ruleset(true, second)
	s.commit(r, result)
	p := s.take()
	var err error
	if p.answers, err = nodePortsAnswer(family, &r.Node, addressesOf[family]); err != nil {
		panic(err)
	}
	return p
}

// TestStaleFlows is kube-proxy's table, with what differs from it on purpose.
func TestStaleFlows(t *testing.T) {
	const (
		addresses = "ip 172.30.0.41 ext 192.168.99.11 lb 1.2.3.4 port 80 np 3001"
		a, b      = "10.180.0.1:8080", "10.180.0.2:8080"
	)
	one := list{service("s", addresses+" ep "+a)}
	none := list{service("s", addresses)}
	virtual := []string{"172.30.0.41:80", "192.168.99.11:80", "1.2.3.4:80"}
	nodePorts := []string{"192.0.2.21:3001", "10.244.1.1:3001", "127.0.0.1:3001", "127.1.2.3:3001"}
	served := slices.Concat(virtual, nodePorts)
	tests := []struct {
		name          string
		first, second list
		rejected      []string
		to            []string
		endpoint      string // empty: not translated
		want          Reason
	}{
		{"to the endpoint", one, one, nil, served, a, ""},
		{"to the endpoint's former port", one, one, nil, served, "10.180.0.1:9090", EndpointGone},
		{"to an endpoint that has gone", list{service("s", addresses+" ep "+a+" ep "+b)}, one, nil, served, b, EndpointGone},
		{"to what never was an endpoint", one, one, nil, served, b, EndpointGone},
		{"to another port of the address", one, one, nil, []string{"172.30.0.41:81", "192.168.99.11:81", "1.2.3.4:81", "192.0.2.21:3002"}, b, ""},
		{"not translated", one, one, nil, served, "", NotTranslated},
		{"not translated, until the first endpoint came", none, one, nil, served, "", NotTranslated},
		{"not translated, until the Service came", nil, one, nil, served, "", NotTranslated},
		{"the last endpoint has gone", one, none, nil, served, a, NoEndpoint},
		{"not translated and no endpoint: to be rejected", none, none, nil, served, "", NotTranslated},

		{"the Service has ended", one, nil, nil, served, a, AddressGone},
		{"the Service has ended, its endpoint before it", one, nil, nil, served, b, AddressGone},
		{"the Service has ended, but the flow is no business of its rules", one, nil, nil, served, "", ""},
		{"the Service has no UDP port any more", one, list{service("s", addresses+" tcp ep "+a)}, nil, served, a, AddressGone},
		{"another cluster IP", one, list{service("s", "ip 172.30.0.42 ext 192.168.99.11 lb 1.2.3.4 port 80 np 3001 ep "+a)}, nil, virtual[:1], a, AddressGone},
		{"the others stay", one, list{service("s", "ip 172.30.0.42 ext 192.168.99.11 lb 1.2.3.4 port 80 np 3001 ep "+a)}, nil, served[1:], a, ""},
		{"another external address", one, list{service("s", "ip 172.30.0.41 ext 192.168.99.12 lb 1.2.3.4 port 80 np 3001 ep "+a)}, nil, virtual[1:2], a, AddressGone},
		{"no load-balancer address", one, list{service("s", "ip 172.30.0.41 ext 192.168.99.11 port 80 np 3001 ep "+a)}, nil, virtual[2:], a, AddressGone},
		{"another port", one, list{service("s", "ip 172.30.0.41 ext 192.168.99.11 lb 1.2.3.4 port 81 np 3001 ep "+a)}, nil, virtual, a, AddressGone},
		{"another node port", one, list{service("s", "ip 172.30.0.41 port 80 np 3002 ep "+a)}, nil, nodePorts, a, AddressGone},
		{"another node port, to a program on the node", one, list{service("s", "ip 172.30.0.41 port 80 np 3002 ep "+a)}, nil, nodePorts, "", ""},
		{"no node port", one, list{service("s", "ip 172.30.0.41 port 80 ep "+a)}, nil, nodePorts, a, AddressGone},
		{"an address lost to an older Service", one, list{service("s", addresses+" lost 1.2.3.4 ep "+a)}, nil, virtual[2:], a, AddressGone},

		{"another Service has the node port now", one, list{service("s", "ip 172.30.0.41 port 80 ep "+a), service("o", "ip 172.30.0.50 port 80 np 3001 ep "+b)}, nil, nodePorts, a, EndpointGone},
		{"another Service has the node port and the endpoint", one, list{service("s", "ip 172.30.0.41 port 80"), service("o", "ip 172.30.0.50 port 80 np 3001 ep "+a)}, nil, nodePorts, a, ""},
		{"another Service has the address now", one, list{service("o", addresses+" ep "+b)}, nil, served, a, EndpointGone},

		{"a node port on an address that is not the node's", one, one, nil, []string{"192.0.2.99:3001", "8.8.8.8:3001"}, b, ""},
		{"likewise, not translated", one, one, nil, []string{"192.0.2.99:3001", "8.8.8.8:3001"}, "", ""},
		{"likewise, gone", one, nil, nil, []string{"192.0.2.99:3001"}, a, ""},

		{"rejected: neither the former addresses", one, list{service("s", "ip 172.30.0.42 port 80 np 3002 ep "+b)}, []string{"s"}, served, b, ""},
		{"rejected: nor the new ones", one, list{service("s", "ip 172.30.0.42 port 80 np 3002 ep "+b)}, []string{"s"}, []string{"172.30.0.42:80", "192.0.2.21:3002"}, a, ""},
		{"rejected: nor when it never was taken", nil, one, []string{"s"}, served, b, ""},
		{"rejected: nor when only TCP is desired", one, list{service("s", addresses+" tcp ep "+a)}, []string{"s"}, served, b, ""},
		{"rejected: another Service of the same address", one, list{service("s", "ip 172.30.0.42 port 80 ep "+b), service("o", addresses+" ep "+b)}, []string{"s"}, served, a, ""},
		{"rejected: others are judged", list{service("s", addresses+" ep "+a), service("o", "ip 172.30.0.50 port 80 ep "+b)},
			list{service("s", addresses+" ep "+b), service("o", "ip 172.30.0.50 port 80 ep "+b)}, []string{"s"}, []string{"172.30.0.50:80"}, a, EndpointGone},

		{"no Service at all", nil, nil, nil, []string{"10.1.1.1:53", "192.0.2.21:3001"}, b, ""},
		{"TCP alone", list{service("s", addresses+" tcp ep "+a)}, list{service("s", addresses+" tcp ep "+a)}, nil, served, b, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := planFor(dataplane.IPv4, tt.first, tt.second, tt.rejected...)
			for _, to := range tt.to {
				endpoint := tt.endpoint
				if endpoint == "" {
					endpoint = to
				}
				if got := p.judge(flow(to, endpoint)); got != tt.want {
					t.Errorf("%s, sent to %s: got %q, want %q", to, endpoint, got, tt.want)
				}
			}
		})
	}
}

// TestFlowsOfTheOtherMode: what nat has translated goes on when IPVS serves the
// address; the other way round that is so only while the kernel has its virtual server.
func TestFlowsOfTheOtherMode(t *testing.T) {
	const endpoint = "10.244.0.3:53"
	svc := service("dns", "ip 10.96.0.10 port 53 np 30053 ep "+endpoint)
	for _, tt := range []struct {
		mode               v1alpha1.ProxyMode
		byIPVS             bool
		rejected, draining bool
		endpoint           string
		want               Reason
	}{
		{mode: v1alpha1.ModeIPTables, endpoint: endpoint},
		{mode: v1alpha1.ModeIPTables, byIPVS: true, endpoint: endpoint, want: OtherMode},
		{mode: v1alpha1.ModeIPTables, byIPVS: true, rejected: true, endpoint: endpoint}, // its virtual server stays
		{mode: v1alpha1.ModeIPTables, byIPVS: true, draining: true, endpoint: endpoint},
		{mode: v1alpha1.ModeIPTables, byIPVS: true, draining: true, endpoint: "10.244.0.4:53", want: EndpointGone},
		{mode: v1alpha1.ModeIPVS, endpoint: endpoint},
		{mode: v1alpha1.ModeIPVS, byIPVS: true, endpoint: endpoint},
	} {
		for _, to := range []string{"10.96.0.10:53", "192.0.2.21:30053"} {
			s := newState(v1alpha1.ProtocolUDP)
			r, result := ruleset(true, list{svc}), dataplane.Result{Rejected: map[dataplane.ServiceName]string{}, OwnFlows: tt.draining || tt.mode == v1alpha1.ModeIPVS}
			if tt.rejected {
				result.Rejected[svc.Name] = "no module"
			}
			r.Mode = tt.mode
			s.commit(r, result)
			p := s.take()
			var err error
			if p.answers, err = nodePortsAnswer(dataplane.IPv4, &r.Node, addressesOf[dataplane.IPv4]); err != nil {
				t.Fatal(err)
			}
			f := flow(to, tt.endpoint)
			f.OutsideNAT = tt.byIPVS
			if got := p.judge(f); got != tt.want {
				t.Errorf("%+v, to %s: %q", tt, to, got)
			}
		}
	}
}

func TestStaleFlowsIPv6(t *testing.T) {
	const a, b = "[2001:db8:a::1]:80", "[2001:db8:a::2]:80"
	p := planFor(dataplane.IPv6, nil, list{service("s", "ip fd00::41 ext 2001:db8:ffff::1 port 80 np 3001 ep "+a)})
	for to, want := range map[string]Reason{
		"[fd00::41]:80": EndpointGone, "[2001:db8:ffff::1]:80": EndpointGone, "[2001:db8::21]:3001": EndpointGone,
		"[::1]:3001": "", "[2001:db8::99]:3001": "",
	} {
		if got := p.judge(flow(to, b)); got != want {
			t.Errorf("%s: got %q, want %q", to, got, want)
		}
		if got := p.judge(flow(to, a)); got != "" {
			t.Errorf("%s to the endpoint: got %q", to, got)
		}
	}
}

// TestTCPFollowsTheRules: connections without an answer are to endpoints that the rules of their
// destination have.
func TestTCPFollowsTheRules(t *testing.T) {
	const ready, terminating, gone = "10.180.0.1:80", "10.180.0.2:80", "10.180.0.3:80"
	s := service("s", "ip 172.30.0.41 ext 192.168.99.11 tcp port 80 np 3001 ep "+ready)
	s.ExternalLocal = true
	s.Ports[0].Local = []netip.AddrPort{netip.MustParseAddrPort(terminating)} // this node's only one
	s.Ports[0].Serving = nil
	before := *s
	before.Ports = slices.Clone(s.Ports)
	before.Ports[0].Cluster = append([]netip.AddrPort{netip.MustParseAddrPort(gone)}, before.Ports[0].Cluster...)
	state := newState(v1alpha1.ProtocolTCP)
	state.commit(ruleset(true, list{&before}), dataplane.Result{})
	state.take()
	r := ruleset(false, list{s}, "s")
	state.commit(r, dataplane.Result{})
	p := state.take()
	if len(p.filters) == 0 {
		t.Fatal("nothing is compared, although an endpoint is gone")
	}
	var err error
	if p.answers, err = nodePortsAnswer(dataplane.IPv4, &r.Node, addressesOf[dataplane.IPv4]); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		to, endpoint string
		want         Reason
	}{
		{"172.30.0.41:80", ready, ""},
		{"172.30.0.41:80", terminating, EndpointGone},
		{"172.30.0.41:80", gone, EndpointGone},
		{"192.168.99.11:80", ready, ""}, // pods and the node reach it
		{"192.168.99.11:80", terminating, ""},
		{"192.0.2.21:3001", terminating, ""},
		{"192.0.2.21:3001", gone, EndpointGone},
	} {
		if got := p.judge(flow(tt.to, tt.endpoint)); got != tt.want {
			t.Errorf("%s, sent to %s: %q, want %q", tt.to, tt.endpoint, got, tt.want)
		}
	}
}

func TestManyEndpoints(t *testing.T) {
	s := service("s", "ip 172.30.0.41 port 80")
	for i := range 2000 {
		s.Ports[0].Serving = append(s.Ports[0].Serving, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 180, byte(i / 250), byte(i % 250)}), 80))
	}
	p := planFor(dataplane.IPv4, nil, list{s})
	if got := p.judge(flow("172.30.0.41:80", "10.180.7.249:80")); got != "" {
		t.Errorf("the last endpoint: %q", got)
	}
	if got := p.judge(flow("172.30.0.41:80", "10.180.8.0:80")); got != EndpointGone {
		t.Errorf("one too many: %q", got)
	}
}

func TestWhereNodePortsAnswer(t *testing.T) {
	mode := func(m v1alpha1.NodePortAddressMode, cidrs ...string) func(*v1alpha1.ProxySettings) {
		return func(s *v1alpha1.ProxySettings) { s.NodePorts.AddressMode, s.NodePorts.CIDRs = &m, cidrs }
	}
	noLocalhost := func(s *v1alpha1.ProxySettings) { s.NodePorts.Localhost = new(v1alpha1.Disabled) }
	const primary, second, localhost, loopback, elsewhere = "192.0.2.21", "10.244.1.1", "127.0.0.1", "127.1.2.3", "192.0.2.22"
	for name, tt := range map[string]struct {
		node dataplane.Node
		want string
	}{
		"all":                      {node(), "192.0.2.21 10.244.1.1 127.0.0.1 127.1.2.3"},
		"all, not on localhost":    {node(noLocalhost), "192.0.2.21 10.244.1.1"},
		"the primary address":      {node(mode(v1alpha1.NodePortsPrimary)), primary},
		"a range":                  {node(mode(v1alpha1.NodePortsCIDRs, "10.244.0.0/16")), second},
		"a range of localhost":     {node(mode(v1alpha1.NodePortsCIDRs, "127.0.0.0/8")), localhost},
		"a range, not localhost":   {node(mode(v1alpha1.NodePortsCIDRs, "127.0.0.0/8", "192.0.2.0/24"), noLocalhost), primary},
		"every address as a range": {node(mode(v1alpha1.NodePortsCIDRs, "0.0.0.0/0")), "192.0.2.21 10.244.1.1 127.0.0.1 127.1.2.3"},
	} {
		t.Run(name, func(t *testing.T) {
			answers, err := nodePortsAnswer(dataplane.IPv4, &tt.node, addressesOf[dataplane.IPv4])
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, a := range []string{primary, second, localhost, loopback, elsewhere} {
				if answers(netip.MustParseAddr(a)) {
					got = append(got, a)
				}
			}
			if text := strings.Join(got, " "); text != tt.want {
				t.Errorf("got %s, want %s", text, tt.want)
			}
		})
	}
}

// TestKeptServicesAreNotJudged: the kernel may have a newer state than the one
// that is known, with other endpoints.
func TestKeptServicesAreNotJudged(t *testing.T) {
	old := list{service("s", "ip 172.30.0.41 port 80 ep 10.180.0.1:8080")}
	today := list{service("s", "ip 172.30.0.41 port 80 ep 10.180.0.2:8080")}
	toToday, toOld := flow("172.30.0.41:80", "10.180.0.2:8080"), flow("172.30.0.41:80", "10.180.0.1:8080")
	s := newState(v1alpha1.ProtocolUDP)
	r := ruleset(true, old)
	r.Preserve = map[dataplane.ServiceName]struct{}{old[0].Name: {}}
	s.commit(r, dataplane.Result{})
	p := s.take()
	for _, f := range []Flow{toToday, toOld} {
		if reason := p.judge(f); reason != "" {
			t.Errorf("%s is removed (%s)", f, reason)
		}
	}
	s.commit(ruleset(true, today), dataplane.Result{})
	p = s.take()
	if got := p.judge(toToday); got != "" {
		t.Errorf("%s is removed (%s)", toToday, got)
	}
	if got := p.judge(toOld); got != EndpointGone {
		t.Errorf("%s: %q, want %q", toOld, got, EndpointGone)
	}
}

// TestFlowsToOtherNodes: IPVS leaves the address of another Node to that one, so that flows to
// it are none of this node's business.
func TestFlowsToOtherNodes(t *testing.T) {
	svc := service("dns", "ip 10.96.0.10 ext 192.0.2.22 lb 192.0.2.21 port 53 ep 10.244.0.3:53")
	svc.NodeAddresses = []netip.Addr{netip.MustParseAddr("192.0.2.21"), netip.MustParseAddr("192.0.2.22")}
	for _, tt := range []struct {
		mode v1alpha1.ProxyMode
		to   string
		want Reason
	}{
		{v1alpha1.ModeIPTables, "192.0.2.22:53", NotTranslated},
		{v1alpha1.ModeIPVS, "192.0.2.22:53", ""},
		{v1alpha1.ModeIPVS, "192.0.2.21:53", NotTranslated}, // its own
	} {
		s := newState(v1alpha1.ProtocolUDP)
		r := ruleset(true, list{svc})
		r.Mode = tt.mode
		s.commit(r, dataplane.Result{OwnFlows: tt.mode == v1alpha1.ModeIPVS})
		p := s.take()
		if got := p.judge(flow(tt.to, tt.to)); got != tt.want {
			t.Errorf("mode %s, to %s: %q, want %q", tt.mode, tt.to, got, tt.want)
		}
	}
}

// TestServiceThatWasNeverProgrammed: an agent that has just started preserves the rules of Services
// that it has not seen yet, while cleanup of mode IPVS may be pending.
func TestServiceThatWasNeverProgrammed(t *testing.T) {
	s := newState(v1alpha1.ProtocolUDP)
	svc := service("s", "ip 172.30.0.41 port 80 ep 10.180.0.1:8080")
	r := ruleset(true, list{svc})
	r.Preserve = map[dataplane.ServiceName]struct{}{svc.Name: {}}
	s.commit(r, dataplane.Result{OwnFlows: true})
	p := s.take()
	if got := p.judge(flow("172.30.0.41:80", "10.180.0.2:8080")); got != "" {
		t.Errorf("a flow is judged %q by rules that are not known", got)
	}
}
