package connections

import (
	"cmp"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/sctp"
	"github.com/nodeproxy-io/nodeproxy/test/load"
	"github.com/nodeproxy-io/nodeproxy/test/place"
	"github.com/nodeproxy-io/nodeproxy/test/scenarios"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

// attempt is a connection to a Service by its number: to its cluster IP (cip),
// load-balancer IP (vip), or node port on the node's first address (np), the
// second (np2) or localhost (lo). The rows are those of package scenarios.
type attempt struct {
	rows     string
	n        int
	from, to string
	want     string
}

func (l *lab) services() []scenarios.Service {
	a, b, r := l.local("a"), l.local("b"), l.remote()
	full := func(n int, endpoints ...string) scenarios.Service {
		return scenarios.Service{
			Name: "svc" + string(rune('a'+n)), CIP: l.clusterIP(n), VIPs: []string{l.balancer(n)}, NP: 30000 + int32(n), Endpoints: endpoints,
		}
	}
	out := []scenarios.Service{
		full(1, a), full(2, a, r), full(3, a, r), full(4, r), full(5, a, r), full(6, r), full(7), full(8, a),
		full(9, a+" T", r), full(10, a+" T", r+" T"), full(11, a, b), full(12, a, r),
	}
	for i := range out {
		switch s := &out[i]; i + 1 {
		case 3, 4, 9:
			s.ETPLocal = true
		case 5, 6:
			s.ITPLocal = true
		case 8:
			s.Ranges = l.ranges
		case 11:
			s.Affinity = time.Minute
		case 12:
			s.Ports = []string{"u:80/UDP", "s:80/SCTP"}
		}
	}
	return out
}

var attempts = []attempt{
	{"2", 1, "a", "cip", "a +M"},
	{"3", 2, "b", "cip", "a r -M"},
	{"9", 2, "node", "cip", "a r +M"},
	{"9", 2, "ext", "cip", "a r +M"},
	{"26", 2, "b", "np", "a r +M"},
	{"27", 2, "ext", "vip", "a r +M"},
	{"27, 80", 2, "ext", "np", "a r +M"},
	{"80", 2, "ext", "np2", "a r +M"},
	{"32", 3, "b", "vip", "a r -M"},
	{"33", 3, "ext", "vip", "a -M"},
	{"33", 3, "ext", "np", "a -M"},
	{"34", 3, "node", "vip", "a r +M"},
	{"34", 3, "node", "np", "a r +M"},
	{"39", 4, "b", "np", "r -M"},
	{"40", 4, "node", "vip", "r +M"},
	{"41", 4, "ext", "vip", "DROP"},
	{"41", 4, "ext", "np", "DROP"},
	{"46", 5, "b", "cip", "a -M"},
	{"48", 5, "ext", "vip", "a r +M"},
	{"51", 6, "b", "cip", "DROP"},
	{"51", 6, "node", "cip", "DROP"},
	{"12", 7, "b", "cip", "REJECT"},
	{"12", 7, "ext", "cip", "REJECT"},
	{"12", 7, "node", "cip", "REJECT"},
	{"17", 7, "ext", "vip", "REJECT"},
	{"18", 7, "ext", "np", "REJECT"},
	{"18", 7, "node", "np", "REJECT"},
	{"72", 8, "ext", "vip", "a +M"},
	{"72", 8, "node", "vip", "a +M"},
	{"73", 8, "blk", "vip", "DROP"},
	{"73", 8, "b", "vip", "DROP"},
	{"71", 8, "blk", "np", "a +M"},
	{"60", 9, "b", "cip", "r -M"},
	{"61", 9, "ext", "vip", "a -M"},
	{"66", 10, "b", "cip", "a r -M"},
	{"67", 10, "ext", "vip", "a r +M"},
}

// TestConnections opens real connections in the most instructive situations.
func TestConnections(t *testing.T) {
	inLabs(t, (*lab).connections)
}

func (l *lab) connections() {
	l.world.Add(l.services()...)
	l.world.Sync()
	for _, x := range attempts {
		// No subtests: they would run on another thread.
		l.connects(x)
	}
	want := "a r +M"
	if l.family == dataplane.IPv6 {
		want = "REJECT" // nothing listens there, and no rule covers it
	}
	l.connects(attempt{"29", 2, "localhost", "lo", want})
	l.expect("b", "udp", l.target(12, "cip"), "a r -M")
	l.expect("ext", "udp", l.target(12, "cip"), "a r +M")
	l.sctp()
	l.affinity()
	l.nodePortAddresses()
	l.podInterfaces()
	if l.Logf("%s: trace agrees with %d attempts", l.family, l.compared); l.compared < 30 {
		l.Errorf("only %d attempts were compared to the prediction of trace", l.compared)
	}
}

// connects tries one connection, whose outcome may be another one in the lab's
// mode.
func (l *lab) connects(x attempt) {
	l.Helper()
	if other, ok := l.instead[fmt.Sprintf("%d %s %s", x.n, x.from, x.to)]; ok {
		x.want = other
	}
	l.expect("row "+x.rows+", "+x.from, "tcp", l.target(x.n, x.to), x.want)
}

func (l *lab) target(n int, to string) netip.AddrPort {
	np := uint16(30000 + n)
	switch to {
	case "cip":
		return netip.AddrPortFrom(addr(l.clusterIP(n)), port)
	case "vip":
		return netip.AddrPortFrom(addr(l.balancer(n)), port)
	case "np":
		return netip.AddrPortFrom(l.node0(), np)
	case "np2":
		return netip.AddrPortFrom(l.node2, np)
	case "lo":
		return netip.AddrPortFrom(l.localhost, np)
	}
	l.Fatalf("what is %s?", to)
	return netip.AddrPort{}
}

// sctp connects if the kernel has SCTP, as that of User-mode Linux does: TestSCTP. The rules
// are loaded in any case.
func (l *lab) sctp() {
	if sctp.Available() {
		l.expect("b", "sctp", l.target(12, "cip"), "a r -M")
		l.expect("ext", "sctp", l.target(12, "cip"), "a r +M")
	} else if uml.Inside() {
		l.Fatal("the kernel of User-mode Linux has no SCTP")
	}
}

// affinity: a client keeps its endpoint by whatever address it comes.
func (l *lab) affinity() {
	client, source := l.who("ext")
	first := ""
	for i := range 20 {
		to := l.target(11, []string{"cip", "vip", "np"}[i%3])
		name, _, err := client.Ask(place.Target{Protocol: "tcp", To: to, From: source, Patience: patience})
		if err = cmp.Or(err, load.Planted()); err != nil {
			load.FatalLoss(l, "%s: %v", to, err)
		}
		if first != "" && name != first {
			l.Fatalf("%s: answer of %q after %q", to, name, first)
		}
		first = name
	}
}

// nodePortAddresses limits node ports to the node's first address.
func (l *lab) nodePortAddresses() {
	mode := v1alpha1.NodePortsPrimary
	l.world.Settings.NodePorts = &v1alpha1.NodePortSettings{AddressMode: &mode}
	l.world.Sync()
	l.expect("ext", "tcp", l.target(2, "np"), "a r +M")
	l.expect("ext", "tcp", l.target(2, "np2"), "REJECT") // the node's own answer: nothing listens
	l.expect("localhost", "tcp", l.target(2, "lo"), "REJECT")
}

// podInterfaces recognizes pods by the interfaces that they enter by, which what the
// node itself sends has none of.
func (l *lab) podInterfaces() {
	prefix := "veth-"
	l.world.Settings.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalInterfaceNamePrefix, InterfaceNamePrefix: &prefix}
	l.world.Sync()
	for _, x := range []attempt{
		{"3", 2, "b", "cip", "a r -M"},
		{"9", 2, "node", "cip", "a r +M"},
		{"9", 2, "ext", "cip", "a r +M"},
		{"32", 3, "b", "vip", "a r -M"},
		{"34", 3, "node", "vip", "a r +M"},
		{"33", 3, "ext", "vip", "a -M"},
	} {
		l.connects(x)
	}
}
