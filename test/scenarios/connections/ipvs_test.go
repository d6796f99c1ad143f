package connections

import (
	"net/netip"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
	"github.com/nodeproxy-io/nodeproxy/test/scenarios"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

func TestMain(m *testing.M) { uml.Main(m) }

// inIPVS are the outcomes that differ in mode IPVS; package scenarios explains why.
var inIPVS = map[string]string{
	"3 b vip":        "a -M",
	"3 node vip":     "a -M",
	"3 node np":      "a -M",
	"6 node cip":     "REJECT",
	"2 localhost lo": "REJECT", // nothing listens there
}

// TestConnectionsInIPVS opens the connections of TestConnections in mode IPVS, and
// some that only matter there; where this machine's kernel has no IPVS, in
// User-mode Linux. They show that the model of the kernel by which package
// scenarios judges does what the kernel does.
func TestConnectionsInIPVS(t *testing.T) {
	if !ipvskernel.Here() {
		inUserModeLinux(t)
		return
	}
	for _, p := range plans {
		t.Run(string(p.family), func(t *testing.T) {
			l := newLab(t, p)
			l.instead, l.tries = inIPVS, 4 // they come in turn
			l.world = scenarios.New(t, p.family, func() dataplane.Dataplane {
				return ipvs.New(p.family, ipvs.Options{
					Kernel: ipvs.NewKernel(p.family, ""),
					Rules:  iptables.NewFixedRules(ipvs.Declaration(), p.family, iptables.Options{Modes: modes.Declarations()}),
				})
			})
			mode := v1alpha1.ModeIPVS
			l.world.Settings.Mode = &mode
			l.connections()
			l.others()
		})
	}
}

// TestSCTP opens connections over SCTP in mode IPTables in User-mode Linux, because many
// kernels lack SCTP. That kernel has the legacy variant of iptables only.
func TestSCTP(t *testing.T) {
	if !uml.Inside() {
		inUserModeLinux(t)
		return
	}
	for _, p := range plans {
		t.Run(string(p.family), func(t *testing.T) {
			l := newLab(t, p)
			l.world = scenarios.New(t, p.family, func() dataplane.Dataplane { return iptables.New(p.family, iptables.Options{}) })
			l.world.Add(l.services()...)
			l.world.Sync()
			l.sctp()
		})
	}
}

// inUserModeLinux runs the calling test in a kernel of its own.
func inUserModeLinux(t *testing.T) {
	t.Helper()
	t.Parallel() // each kernel has a processor of its own
	uml.Test(t, uml.Options{})
}

// others are connections to what is no Service's, and those of processes that
// leave their address to the kernel, where +M means no more than that it has chosen
// one.
func (l *lab) others() {
	elsewhere := netip.AddrPortFrom(addr(l.clusterIP(2)), port+1)
	for _, from := range []string{"b", "ext", "node"} {
		l.expect(from, "tcp", elsewhere, "REJECT")
	}
	for _, x := range []attempt{
		{"9", 2, "self", "cip", "a r +M"},
		{"28", 2, "self", "vip", "a r +M"},
		{"110", 3, "self", "vip", "a +M"},
		{"40", 4, "self", "vip", "r +M"},
		{"72", 8, "self", "vip", "a +M"},
	} {
		l.connects(x)
	}
}
