package ipvs_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest/ipvstest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// fixedRules replaces iptables.FixedRules.
type fixedRules struct {
	held    fixedrules.Rules
	applied int
	fail    error
	before  func() error // called before each Apply
}

func (f *fixedRules) Supported(context.Context) error { return f.fail }

func (f *fixedRules) Apply(_ context.Context, want fixedrules.Rules) (bool, error) {
	if f.before != nil {
		if err := f.before(); err != nil {
			return false, err
		}
	}
	f.applied++
	changed := !reflect.DeepEqual(f.held, want)
	f.held = want
	return changed, f.fail
}

func (f *fixedRules) Compare(_ context.Context, want fixedrules.Rules) (fixedrules.State, error) {
	out := fixedrules.State{Chains: len(f.held.Chains)}
	have := map[string][]string{}
	for _, c := range f.held.Chains {
		have[c.Table+c.Name] = c.Rules
	}
	for _, c := range want.Chains {
		if !slices.Equal(have[c.Table+c.Name], c.Rules) {
			out.Findings = append(out.Findings, dataplane.Finding{Key: "iptables " + c.Table + c.Name, Text: "chain " + c.Name + " differs"})
		}
	}
	return out, f.fail
}

func (f *fixedRules) CleanupMode(context.Context, v1alpha1.ProxyMode) error {
	f.held = fixedrules.Rules{}
	return f.fail
}

func (f *fixedRules) Cleanup(context.Context) error {
	f.held = fixedrules.Rules{}
	return f.fail
}

func (f *fixedRules) Watch(ctx context.Context, _ func(dataplane.Change)) { <-ctx.Done() }

// asks reports whether a rule matches an ipset.
func (f *fixedRules) asks(set ipvs.SetName) bool {
	for _, c := range f.held.Chains {
		for _, r := range c.Rules {
			if strings.Contains(r, "--match-set "+string(set)+" ") && !strings.HasSuffix(r, "-j RETURN") {
				return true
			}
		}
	}
	return false
}

// bench is a node in memory.
type bench struct {
	testing.TB
	family dataplane.Family
	kernel *ipvstest.Kernel
	rules  *fixedRules
	clock  *testclock.FakeClock
	// between passes before a Service that is rejected is tried as it has changed.
	between time.Duration
	plane   *ipvs.Dataplane
	r       *dataplane.Ruleset
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{
		TB: t, family: dataplane.IPv4,
		kernel:  ipvstest.New(dataplane.IPv4, ip("192.168.0.2"), ip("192.168.1.2"), ip("127.0.0.1")),
		rules:   &fixedRules{},
		between: 10 * time.Second,
		clock:   testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
	}
	b.r = &dataplane.Ruleset{
		Mode: v1alpha1.ModeIPVS,
		Node: dataplane.Node{
			Settings: v1alpha1.CompleteSettings(&v1alpha1.ProxySettings{}), Addresses: []netip.Addr{ip("192.168.0.2")},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.180.0.0/24")},
		},
		Services: map[dataplane.ServiceName]*dataplane.Service{}, Dirty: map[dataplane.ServiceName]struct{}{}, Full: true, Prune: true,
	}
	b.restart()
	return b
}

// restart replaces the data plane by a new one.
func (b *bench) restart() {
	b.plane = ipvs.New(b.family, ipvs.Options{Kernel: b.kernel, Rules: b.rules, Clock: b.clock})
	b.r.Full = true
}

// set adds or replaces Services.
func (b *bench) set(list ...*dataplane.Service) {
	for _, s := range list {
		b.r.Services[s.Name] = s
		b.r.Dirty[s.Name] = struct{}{}
	}
}

func (b *bench) remove(list ...*dataplane.Service) {
	for _, s := range list {
		delete(b.r.Services, s.Name)
		b.r.Dirty[s.Name] = struct{}{}
	}
}

// try applies, and sets dirty and resting Services like the agent.
func (b *bench) try() (dataplane.Result, error) {
	if b.r.Full {
		if err := b.plane.Supported(context.Background(), b.r); err != nil {
			return dataplane.Result{}, err
		}
	}
	for name := range b.r.Dirty {
		if _, rejected := b.r.Rest[name]; rejected {
			delete(b.r.Rest, name)
			b.clock.Step(b.between)
		}
	}
	result, err := b.plane.Apply(context.Background(), b.r)
	if err != nil {
		b.r.Full = true
		return result, err
	}
	b.r.Rest = map[dataplane.ServiceName]struct{}{}
	for name := range result.Rejected {
		b.r.Rest[name] = struct{}{}
	}
	b.r.Full, b.r.Recheck = false, false
	b.r.Dirty = map[dataplane.ServiceName]struct{}{}
	return result, nil
}

func (b *bench) apply() dataplane.Result {
	b.Helper()
	b.kernel.Reset()
	result, err := b.try()
	if err != nil {
		b.Fatal(err)
	}
	return result
}

// wants compares the writes of an Apply.
func (b *bench) wants(want ...string) {
	b.Helper()
	if got := b.kernel.Writes(); !slices.Equal(got, want) {
		b.Errorf("written:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// verified checks that Verify finds no difference.
func (b *bench) verified() {
	b.Helper()
	diff, err := b.plane.Verify(context.Background(), b.r, dataplane.VerifyOptions{})
	if err != nil || diff.Count != 0 {
		b.Errorf("%v, %+v", err, diff)
	}
}

// state prints the kernel state.
func (b *bench) state() string {
	b.Helper()
	servers, err := b.kernel.Servers()
	if err != nil {
		b.Fatal(err)
	}
	var out []string
	for k := range servers {
		out = append(out, fmt.Sprintf("%s: %s", k, b.kernel.Server(k)))
	}
	bound, exists, err := b.kernel.Bound()
	if err != nil {
		b.Fatal(err)
	}
	out = append(out, fmt.Sprintf("bound %t %v", exists, bound))
	for _, name := range allSets() {
		if entries := b.kernel.Entries(name); len(entries) > 0 {
			out = append(out, fmt.Sprintf("%s %v", name, entries))
		}
	}
	for _, c := range b.rules.held.Chains {
		out = append(out, fmt.Sprintf("%s %s %q", c.Table, c.Name, c.Rules))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func allSets() []ipvs.SetName {
	return []ipvs.SetName{
		"KUBE-LOOP-BACK", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP", "KUBE-EXTERNAL-IP-LOCAL", "KUBE-LOAD-BALANCER", "KUBE-LOAD-BALANCER-LOCAL",
		"KUBE-LOAD-BALANCER-FW", "KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-NODE-PORT-TCP", "KUBE-NODE-PORT-LOCAL-TCP",
		"KUBE-NODE-PORT-UDP", "KUBE-NODE-PORT-LOCAL-UDP", "KUBE-NODE-PORT-SCTP-HASH", "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
		"KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-IPVS-IPS", "NODEPROXY-NO-LOCAL", "NODEPROXY-NO-LOCAL-ALL",
	}
}

func tcp(addr string, port uint16) ipvs.Key {
	return ipvs.Key{Addr: ip(addr), Port: port, Protocol: v1alpha1.ProtocolTCP}
}

// ends parses endpoints.
func ends(list ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range list {
		out = append(out, netip.MustParseAddrPort(s))
	}
	return out
}

// service returns one with the cluster IP 10.0.0.N, port 80 and endpoints.
func service(n int, endpoints ...string) *dataplane.Service {
	return &dataplane.Service{
		Name:      dataplane.ServiceName{Namespace: "ns", Name: fmt.Sprintf("svc%04d", n)},
		ClusterIP: netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}),
		Ports:     []dataplane.Port{{Protocol: v1alpha1.ProtocolTCP, Port: 80, Cluster: ends(endpoints...), Available: len(endpoints) > 0}},
	}
}

// with returns a copy of a Service with other endpoints of its first port.
func with(s *dataplane.Service, endpoints ...string) *dataplane.Service {
	out := *s
	out.Ports = slices.Clone(s.Ports)
	out.Ports[0].Cluster, out.Ports[0].Available = ends(endpoints...), len(endpoints) > 0
	return &out
}

// many returns n Services with ten endpoints each.
func many(n int) []*dataplane.Service {
	var out []*dataplane.Service
	for i := range n {
		var list []string
		for j := range 10 {
			list = append(list, fmt.Sprintf("10.%d.%d.%d:80", 181+i>>8, i&0xff, j+1))
		}
		out = append(out, service(i+1, list...))
	}
	return out
}

var errBoom = errors.New("boom")

func names[V any](m map[dataplane.ServiceName]V) []string {
	var out []string
	for name := range maps.Keys(m) {
		out = append(out, name.Name)
	}
	slices.Sort(out)
	return out
}
