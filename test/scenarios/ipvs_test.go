package scenarios

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest/ipvstest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// newIPVSWorld is newWorld in mode IPVS.
func newIPVSWorld(t *testing.T, family dataplane.Family) *world {
	addresses := addresses4
	if family == dataplane.IPv6 {
		addresses = addresses6
	}
	k := ipvstest.New(family, addresses...)
	return &world{kernel: k.Tables, ipvs: k, World: New(t, family, func() dataplane.Dataplane {
		return ipvs.New(family, ipvs.Options{Kernel: k, Rules: iptables.NewFixedRules(ipvs.Declaration(), family, iptables.Options{Modes: modes.Declarations(), Model: k.Tables})})
	})}
}

// difference is why a mode deals otherwise with packets of rows of mode IPTables.
type difference struct {
	why     string
	packets []otherwise
}

// notOnLoopback is true of modes IPVS and NFTables.
var notOnLoopback = difference{"node ports do not answer on loopback addresses", []otherwise{
	{20, LO, "127.0.0.1:3001", "PASS"},
	{29, LO, "127.0.0.1:3001", "PASS"},
	{35, LO, "127.0.0.1:3002", "PASS"},
	{49, LO, "127.0.0.1:3003", "PASS"},
	{80, LO, "127.0.0.1:3001", "PASS"},
	{88, LO, "127.0.0.1:3001", "PASS"},
}}

// inIPVS are the packets with which mode IPVS deals otherwise, by the reason.
var inIPVS = []difference{
	{"the address is local to the node, which rejects what is no Service's", []otherwise{
		{6, POD, "udp/172.30.0.41:80", "REJECT"},
		{7, POD, "172.30.0.41:443", "REJECT"},
		{23, NODE, "1.2.3.4:80", "REJECT"},
	}},
	{"a process that sends to a cluster IP has it as source, and is masqueraded for that", []otherwise{
		{10, NODE, "172.30.0.42:80", "10.180.0.1 10.180.2.1 +M"},
	}},
	{"only local endpoints are known to reach themselves", []otherwise{
		{13, "10.180.1.1", "172.30.0.42:80", "10.180.0.1 10.180.1.1 -M"},
	}},
	notOnLoopback,
	{"no virtual server is on an address that the settings leave out", []otherwise{
		{21, EXT, "192.168.1.2:3001", "PASS"},
	}},
	{"source ranges hold without endpoints too", []otherwise{
		{23, BLK, "1.2.3.4:80", "DROP"},
		{23, POD, "1.2.3.4:80", "DROP"},
	}},
	{"under policy Local all clients get local endpoints, as they are", []otherwise{
		{32, POD, "5.6.7.8:80", "10.180.0.2 -M"},
		{32, POD, "192.168.0.2:3002", "10.180.0.2 -M"},
		{32, POD, "192.168.99.22:80", "10.180.0.2 -M"},
		{34, NODE, "5.6.7.8:80", "10.180.0.2 -M"},
		{34, NODE, "192.168.0.2:3002", "10.180.0.2 -M"},
		{37, POD, "5.6.7.8:80", "10.180.0.2 -M"},
		{38, "10.180.0.2", "5.6.7.8:80", "10.180.0.2 +M"},
		{76, POD, "1.2.3.4:80", "10.180.0.1 -M"},
		{76, POD, "5.6.7.8:80", "10.180.0.1 -M"},
		{102, POD, "1.2.3.4:80", "10.1.2.3 -M"},
		{102, NODE, "1.2.3.4:80", "10.1.2.3 -M"},
	}},
	{"under internal policy Local without a local endpoint, IPVS rejects the node's own processes before rules could drop them", []otherwise{
		{51, NODE, "172.30.0.43:80", "REJECT"},
	}},
	{"the node's own processes are held to source ranges where they have the load-balancer address as source", []otherwise{
		{75, NODE, "1.2.3.4:80", "10.180.0.1 +M"},
	}},
}

// otherwise is what becomes of a packet of a row in another mode.
type otherwise struct {
	row            int
	from, to, want string
}

// differences are those of one row, and note which of them have been met.
func differences(all []difference, row int, met map[otherwise]bool) func(from, to string) (string, bool) {
	return func(from, to string) (string, bool) {
		for _, d := range all {
			for _, p := range d.packets {
				if p.row == row && p.from == from && p.to == to {
					met[p] = true
					return p.want, true
				}
			}
		}
		return "", false
	}
}

// TestRowsInIPVS runs the rows of mode IPTables in mode IPVS, in both families:
// what becomes of packets is the same but for what inIPVS lists.
func TestRowsInIPVS(t *testing.T) { runRowsIn(t, newIPVSWorld, inIPVS) }

// runRowsIn runs the rows of mode IPTables in another mode, in both families. Each difference must
// be met.
func runRowsIn(t *testing.T, newOne func(*testing.T, dataplane.Family) *world, all []difference) {
	t.Helper()
	met := map[otherwise]bool{}
	ran := 0
	for _, r := range allRows() {
		ran++
		t.Run(r.title(), func(t *testing.T) {
			family := dataplane.IPv4
			if r.ipv6 {
				family = dataplane.IPv6
			}
			w := newOne(t, family)
			w.instead = differences(all, r.n, met)
			r.runIn(w)
		})
		r6, ok := r.inIPv6()
		if !ok {
			continue
		}
		ran++
		t.Run("IPv6 "+r.title(), func(t *testing.T) {
			w := newOne(t, dataplane.IPv6)
			w.mapped, w.instead = true, differences(all, r.n, met)
			w.setAddresses(addresses4...)
			r6.runIn(w)
		})
	}
	for _, d := range all {
		for _, p := range d.packets {
			if !met[p] {
				t.Errorf("row %d has no packet %s → %s", p.row, p.from, p.to)
			}
		}
	}
	t.Logf("%d situations", ran)
}

// server checks a virtual server, [protocol/]address:port, which is bound or not.
// Empty: there is none.
func (w *world) server(key, want string) {
	w.Helper()
	if got := w.ipvs.Server(w.key(key)); got != w.tr(want) {
		w.Errorf("virtual server %s: %q, want %q", key, got, w.tr(want))
	}
}

// key reads the name of a virtual server.
func (w *world) key(text string) ipvs.Key {
	protocol, address, ok := strings.Cut(text, "/")
	if !ok {
		protocol, address = "tcp", text
	}
	a := netip.MustParseAddrPort(w.tr(address))
	return ipvs.Key{Addr: a.Addr(), Port: a.Port(), Protocol: v1alpha1.Protocol(strings.ToUpper(protocol))}
}

// servers checks which virtual servers there are, sorted.
func (w *world) servers(want ...string) {
	w.Helper()
	if got := w.ipvs.Keys(); !slices.Equal(got, want) {
		w.Errorf("virtual servers %q, want %q", got, want)
	}
}

// isBound checks which addresses are on kube-ipvs0, and in the ipset that reports it.
func (w *world) isBound(want ...string) {
	w.Helper()
	bound, _, err := w.ipvs.Bound()
	if err != nil || !slices.Equal(bound, addrs(want...)) {
		w.Errorf("bound: %v, want %v, %v", bound, want, err)
	}
	slices.Sort(want)
	w.entries("KUBE-IPVS-IPS", want...)
}

// entries checks an ipset.
func (w *world) entries(set ipvs.SetName, want ...string) {
	w.Helper()
	if got := w.ipvs.Entries(set); !slices.Equal(got, want) {
		w.Errorf("ipset %s: %q, want %q", set, got, want)
	}
}

// chain checks the rules of a chain.
func (w *world) chain(table, name string, want ...string) {
	w.Helper()
	if got, _ := w.kernel.Chain(table, name); !slices.Equal(got, want) {
		w.Errorf("%s %s: %q, want %q", table, name, got, want)
	}
}
