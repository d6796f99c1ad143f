package connections

import (
	"net/netip"
	"os"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
	"github.com/nodeproxy-io/nodeproxy/test/scenarios"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

func TestMain(m *testing.M) { uml.Main(m) }

// inIPVS are the outcomes that differ in mode IPVS; package scenarios says why.
var inIPVS = map[string]string{
	"3 b vip":        "a -M",
	"3 node vip":     "a -M",
	"3 node np":      "a -M",
	"6 node cip":     "REJECT",
	"2 localhost lo": "REJECT", // nobody listens there
}

// TestConnectionsInIPVS opens the connections of TestConnections in mode IPVS, and
// some that only matter there; where this machine's kernel has no IPVS, in
// User-mode Linux. They show that the model of the kernel by which package
// scenarios judges does what the kernel does.
func TestConnectionsInIPVS(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	if !ipvskernel.Here() {
		if err := uml.Missing(); err != nil {
			t.Skip(err)
		}
		out, err := uml.Run(t.Context(), uml.Options{Test: t.Name(), Folder: t.TempDir()})
		if err != nil || out.Status != 0 {
			t.Fatalf("status %d, %v\n%s", out.Status, err, out.Output)
		}
		t.Logf("in %.1f s:\n%s", out.Took.Seconds(), out.Output)
		return
	}
	for _, p := range plans {
		t.Run(string(p.family), func(t *testing.T) {
			l := newLab(t, p)
			l.instead, l.tries = inIPVS, 4 // they come in turn
			l.world = scenarios.New(t, p.family, func() dataplane.Dataplane {
				return ipvs.New(p.family, ipvs.Options{
					Kernel: ipvs.NewKernel(p.family, ipvs.KernelOptions{}),
					Rules:  iptables.NewKeeper(p.family, iptables.Options{}),
				})
			})
			mode := v1alpha1.ModeIPVS
			l.world.Settings.Mode = &mode
			l.connections()
			l.others()
		})
	}
}

// others are connections to what is no Service's, and those of processes that
// leave their address to the kernel, where +M says no more than that it has chosen
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
