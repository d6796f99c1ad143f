package ipvs_test

import (
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs/ipvsmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestSysctls: each has the value that the mode needs, and only if the kernel needs it.
func TestSysctls(t *testing.T) {
	always := map[string]string{
		"net/ipv4/vs/conntrack": "1", "net/ipv4/vs/expire_nodest_conn": "1", "net/ipv4/vs/expire_quiescent_template": "1",
		"net/ipv4/ip_forward": "1", "net/ipv4/conf/all/arp_ignore": "0", "net/ipv4/conf/all/arp_announce": "0",
	}
	for release, reuse := range map[string]string{
		"3.19.8": "1", "4.0.9": "1", "4.1.0": "0", "4.19.0-21-amd64": "0", "5.0": "0", "5.8.18": "0", "5.9.0": "1", "5.10.0": "1", "6.1.0": "1", "10.4.0": "1", "": "1", "next": "1",
	} {
		b := newBench(t)
		if err := b.kernel.SetSysctl("kernel/osrelease", release); err != nil {
			t.Fatal(err)
		}
		b.apply()
		check := func(name, want string) {
			t.Helper()
			if got, err := b.kernel.Sysctl(name); err != nil || got != want {
				t.Errorf("kernel %q: %s is %q, want %q; %v", release, name, got, want, err)
			}
		}
		check("net/ipv4/vs/conn_reuse_mode", reuse)
		for name, want := range always {
			check(name, want)
		}
	}
}

// TestSysctlThatCannotBeSet: the warning names the effect of each.
func TestSysctlThatCannotBeSet(t *testing.T) {
	for name, what := range map[string]string{
		"net/ipv4/vs/conntrack":                 "not masqueraded",
		"net/ipv4/vs/expire_nodest_conn":        "deleted endpoints hang",
		"net/ipv4/vs/expire_quiescent_template": "session affinity keep terminating endpoints",
		"net/ipv4/vs/conn_reuse_mode":           "wait for a second",
		"net/ipv4/ip_forward":                   "not forwarded",
		"net/ipv4/conf/all/arp_ignore":          "answers ARP",
		"net/ipv4/conf/all/arp_announce":        "answers ARP",
	} {
		b := newBench(t)
		*b.r.Node.Settings.IPVS.StrictARP = v1alpha1.Enabled
		if err := b.kernel.SetSysctl("kernel/osrelease", "5.4.0"); err != nil {
			t.Fatal(err)
		}
		b.kernel.Reject = func(c ipvsmodel.Call) error {
			if c.Method == "SetSysctl" && strings.HasPrefix(c.Name, name+"=") {
				return errBoom
			}
			return nil
		}
		warnings := b.apply().Warnings
		if len(warnings) != 1 || !strings.Contains(warnings[0], strings.ReplaceAll(name, "/", ".")) || !strings.Contains(warnings[0], what) {
			t.Errorf("%s: %q", name, warnings)
		}
	}
}

// TestSysctlsOfOthers: changes by another program are found and reverted.
func TestSysctlsOfOthers(t *testing.T) {
	b := newBench(t)
	*b.r.Node.Settings.IPVS.TCPTimeoutSeconds = 1000
	b.apply()
	b.verified()
	for _, change := range []struct {
		what string
		do   func() error
	}{
		{"the sysctl net.ipv4.vs.conntrack is 0, not 1, so connections are not masqueraded", func() error {
			return b.kernel.SetSysctl("net/ipv4/vs/conntrack", "0")
		}},
		{"(TCP, TCP after FIN, UDP, in seconds) are 900 120 300, not 1000 0 0", func() error {
			return b.kernel.SetTimeouts(ipvs.Timeouts{TCP: 900})
		}},
	} {
		if err := change.do(); err != nil {
			t.Fatal(err)
		}
		diff, err := b.plane.Verify(t.Context(), b.r, dataplane.VerifyOptions{})
		if err != nil || !diff.Drifted || len(diff.Examples) != 1 || !strings.Contains(diff.Examples[0], change.what) {
			t.Errorf("%v, %+v; want %q", err, diff, change.what)
		}
		b.r.Full = true
		b.apply()
		b.verified()
	}
}

// TestSysctlThatCannotBeSetIsNoDrift: it is not repaired again and again.
func TestSysctlThatCannotBeSetIsNoDrift(t *testing.T) {
	b := newBench(t)
	*b.r.Node.Settings.IPVS.UDPTimeoutSeconds = 7
	b.kernel.Reject = func(c ipvsmodel.Call) error {
		if c.Method == "SetTimeouts" || c.Method == "SetSysctl" && strings.HasPrefix(c.Name, "net/ipv4/vs/conntrack=") {
			return errBoom
		}
		return nil
	}
	if warnings := b.apply().Warnings; len(warnings) != 2 {
		t.Errorf("%q", warnings)
	}
	b.verified()
}
