package iptables

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var families = []dataplane.Family{dataplane.IPv4, dataplane.IPv6}

// numberedService has n endpoints, in either family.
func numberedService(family dataplane.Family, name dataplane.ServiceName, i, n int) *dataplane.Service {
	clusterIP, ep := "172.30.0.%d", "10.%d.%d.%d"
	if family == dataplane.IPv6 {
		clusterIP, ep = "fd00:30::%x", "fd00::%x:%x:%x"
	}
	s := testService("ns/svc", fmt.Sprintf(clusterIP, i+1), dataplane.Port{Available: n > 0})
	s.Name = name
	for j := range n {
		a := netip.MustParseAddr(fmt.Sprintf(ep, 180+i, j/200, j%200+1))
		s.Ports[0].Cluster = append(s.Ports[0].Cluster, netip.AddrPortFrom(a, 80))
	}
	return s
}

// TestTwoThousandEndpoints: what the kernel prints of the probabilities of very
// many endpoints is taken for what was written, so that nothing is written
// again.
func TestTwoThousandEndpoints(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		for _, family := range families {
			name := dataplane.ServiceName{Namespace: "ns", Name: "large"}
			rules := newRuleset(numberedService(family, name, 0, 2000))
			result := mustApply(t, New(family, Options{Programs: NewPrograms(directory, "")}), rules)
			if len(result.Rejected) > 0 || result.Counts[dataplane.Rules] < 6000 {
				t.Fatalf("%s: rejected %v, %d rules", family, result.Rejected, result.Counts[dataplane.Rules])
			}
			holdsAll(t, New(family, Options{Programs: NewPrograms(directory, "")}), rules)
		}
	})
}

// holdsAll checks that a new agent finds nothing to do.
func holdsAll(t *testing.T, plane *Dataplane, rules *dataplane.Ruleset) {
	t.Helper()
	d, err := plane.Verify(t.Context(), rules, dataplane.VerifyOptions{})
	if err != nil || d.Count > 0 {
		t.Errorf("%s: %d differences, %v: %s", plane.family, d.Count, err, strings.Join(d.Examples, "\n"))
	}
	rules.Full = true
	if result := mustApply(t, plane, rules); result.ServicesChanged != 0 {
		t.Errorf("%s: a restart writes %+v", plane.family, result)
	}
}

// TestNamesOfGreatestLength: the names of chains and the comments of all kinds of
// rules stay within what the kernel takes.
func TestNamesOfGreatestLength(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		for _, family := range families {
			var services []*dataplane.Service
			for i, edit := range []func(*dataplane.Service){
				func(*dataplane.Service) {},
				func(s *dataplane.Service) { s.ExternalLocal = true },
				func(s *dataplane.Service) { s.InternalLocal = true },
				func(s *dataplane.Service) { s.Ports[0].Cluster, s.Ports[0].Available = nil, false },
			} {
				s := numberedService(family, dataplane.ServiceName{
					Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 62) + fmt.Sprint(i),
				}, i, 3)
				p := &s.Ports[0]
				p.Name, p.NodePort = strings.Repeat("p", 63), uint16(30000+i)
				p.Protocol = []v1alpha1.Protocol{v1alpha1.ProtocolTCP, v1alpha1.ProtocolUDP, v1alpha1.ProtocolSCTP, v1alpha1.ProtocolSCTP}[i]
				s.ExternalIPs = append(s.ExternalIPs, p.Cluster[1].Addr())
				s.LoadBalancerIPs = append(s.LoadBalancerIPs, p.Cluster[2].Addr())
				s.SourceRanges = []netip.Prefix{netip.PrefixFrom(p.Cluster[0].Addr(), p.Cluster[0].Addr().BitLen())}
				s.AffinitySeconds, s.HealthCheckNodePort = 86400, uint16(31000+i)
				edit(s)
				services = append(services, s)
			}
			services[1].Ports[0].Local = services[1].Ports[0].Cluster[:1]
			rules := newRuleset(services...)
			if result := mustApply(t, New(family, Options{Programs: NewPrograms(directory, "")}), rules); len(result.Rejected) > 0 {
				t.Fatalf("%s: rejected %v", family, result.Rejected)
			}
			holdsAll(t, New(family, Options{Programs: NewPrograms(directory, "")}), rules)
			// The programs cut comments that are too long.
			command := map[dataplane.Family]string{dataplane.IPv4: "iptables-save", dataplane.IPv6: "ip6tables-save"}[family]
			longest := "masquerade LOCAL traffic for " + portName(services[1].Name, services[1].Ports[0].Name) + " external destinations"
			if out := run(t, filepath.Join(directory, command), "-t", "nat"); !strings.Contains(out, `"`+longest+`"`) {
				t.Errorf("%s: no rule has the comment %q:\n%s", family, longest, out)
			}
		}
	})
}

// TestRejectedByIPTablesRestore stands a program before iptables-restore that
// does not take the lines of one Service; for the others the real one runs.
func TestRejectedByIPTablesRestore(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		for family, command := range map[dataplane.Family]string{dataplane.IPv4: "iptables", dataplane.IPv6: "ip6tables"} {
			var services []*dataplane.Service
			for i := range 9 {
				services = append(services, numberedService(family, dataplane.ServiceName{Namespace: "ns", Name: fmt.Sprintf("svc%d", i)}, i, 2))
			}
			rejectLines(t, filepath.Join(directory, command+"-restore"), services[3].Ports[0].Cluster[0].String())
			result := mustApply(t, New(family, Options{Programs: NewPrograms(directory, "")}), newRuleset(services...))
			if len(result.Rejected) != 1 || !strings.Contains(result.Rejected[services[3].Name], "no such match") {
				t.Fatalf("%s: rejected: %v", family, result.Rejected)
			}
			out := run(t, filepath.Join(directory, command+"-save"), "-t", "nat")
			for i := range 9 {
				if got, want := strings.Contains(out, fmt.Sprintf("ns/svc%d:p80 cluster IP", i)), i != 3; got != want {
					t.Errorf("%s: svc%d programmed: %t, want %t", family, i, got, want)
				}
			}
		}
	})
}

// rejectLines lets a program fail whose input holds a text.
func rejectLines(t *testing.T, program, text string) {
	t.Helper()
	real := filepath.Join(t.TempDir(), filepath.Base(program))
	if err := os.Rename(program, real); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\ninput=$(cat)\ncase \"$input\" in *'" + text + "'*) echo 'line 7: no such match' >&2; exit 2;; esac\n" +
		"printf '%s\\n' \"$input\" | " + real + " \"$@\"\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}
