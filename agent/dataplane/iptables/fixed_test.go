package iptables

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// chainNodePort is a chain of another mode alone.
const chainNodePort = "KUBE-NODE-PORT"

// Sets that the rules of tests ask, by type.
var testSets = map[string]string{
	"CLUSTER-IP": "hash:ip,port", "LOAD-BALANCER": "hash:ip,port", "LOAD-BALANCER-FW": "hash:ip,port",
	"LOAD-BALANCER-SOURCE-CIDR": "hash:ip,port,net", "EXTERNAL-IP": "hash:ip,port", "LOOP-BACK": "hash:ip,port,ip",
	"NODE-PORT-TCP": "bitmap:port", "HEALTH-CHECK-NODE-PORT": "bitmap:port", "IPVS-IPS": "hash:ip",
}

// setNameOf is the name of a set in a family.
func setNameOf(family dataplane.Family, name string) string {
	if family == dataplane.IPv6 {
		return ("KUBE-6-" + name)[:min(31, len("KUBE-6-"+name))]
	}
	return "KUBE-" + name
}

// serversMode declares a mode that packets meet later, and whose chains and rules are those of
// ipvsRules.
func serversMode() dataplane.Declaration {
	out := dataplane.Declaration{Mode: v1alpha1.ModeIPVS, Precedence: 30, Matches: []string{"set", "ipvs", "physdev"}}
	for _, family := range families {
		want := ipvsRules(family)
		for _, c := range want.Chains {
			out.Owns.Chains = append(out.Owns.Chains, c.Table+"/"+c.Name)
		}
		for name := range testSets {
			out.Owns.Sets = append(out.Owns.Sets, setNameOf(family, name))
		}
		loopback, own := want.Chains[0].Rules[0], want.Chains[0].Rules[2]
		out.Owns.Rules = append(out.Owns.Rules, dataplane.SharedRule{Chain: "nat/KUBE-SERVICES", Rule: loopback},
			dataplane.SharedRule{Chain: "nat/KUBE-SERVICES", Rule: own, First: true})
	}
	for _, chain := range []string{"filter/INPUT", "filter/FORWARD"} {
		out.Owns.Rules = append(out.Owns.Rules, dataplane.SharedRule{Chain: chain, Rule: "-j KUBE-PROXY-FIREWALL"})
	}
	return out
}

func twoModes() []dataplane.Declaration { return []dataplane.Declaration{Declaration(), serversMode()} }

func makeSets(t *testing.T, family dataplane.Family) {
	t.Helper()
	for name, kind := range testSets {
		args := []string{"create", setNameOf(family, name), kind}
		switch {
		case strings.HasPrefix(kind, "bitmap"):
			args = append(args, "range", "0-65535")
		case family == dataplane.IPv6:
			args = append(args, "family", "inet6")
		}
		run(t, "ipset", args...)
	}
}

// ipvsRules are rules as mode IPVS has them, of each form that it uses. Before are
// written first into nat KUBE-SERVICES.
func ipvsRules(family dataplane.Family, before ...string) fixedrules.Rules {
	set := func(name, directions string) string {
		return "-m set --match-set " + setNameOf(family, name) + " " + directions
	}
	loopback := "127.0.0.0/8"
	if family == dataplane.IPv6 {
		loopback = "::1/128"
	}
	services := slices.Concat([]string{"-s " + loopback + " -j RETURN"}, before, []string{
		set("LOAD-BALANCER", "dst,dst") + " -j KUBE-LOAD-BALANCER",
		set("CLUSTER-IP", "src,dst") + " -j KUBE-MARK-MASQ",
		set("EXTERNAL-IP", "dst,dst") + " -j KUBE-MARK-MASQ",
		set("EXTERNAL-IP", "dst,dst") + " -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT",
		set("EXTERNAL-IP", "dst,dst") + " -m addrtype --dst-type LOCAL -j ACCEPT",
		"-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT",
		set("CLUSTER-IP", "dst,dst") + " -j ACCEPT",
	})
	const mark = "0x4000"
	out := fixedrules.Rules{Chains: []fixedrules.Chain{
		{Table: "nat", Name: "KUBE-SERVICES", Rules: services},
		{Table: "nat", Name: "KUBE-NODE-PORT", Rules: []string{"-p tcp " + set("NODE-PORT-TCP", "dst") + " -j KUBE-MARK-MASQ"}},
		{Table: "nat", Name: "KUBE-LOAD-BALANCER", Rules: []string{"-j KUBE-MARK-MASQ"}},
		{Table: "nat", Name: "KUBE-MARK-MASQ", Rules: []string{"-j MARK --or-mark " + mark}},
		{Table: "nat", Name: "KUBE-POSTROUTING", Rules: []string{
			set("LOOP-BACK", "dst,dst,src") + " -j MASQUERADE",
			"-m mark ! --mark " + mark + "/" + mark + " -j RETURN", "-j MARK --xor-mark " + mark,
			`-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully`,
		}},
		{Table: "filter", Name: "KUBE-FORWARD", Rules: []string{"-m mark --mark " + mark + "/" + mark + " -j ACCEPT", "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"}},
		{Table: "filter", Name: "KUBE-NODE-PORT", Rules: []string{set("HEALTH-CHECK-NODE-PORT", "dst") + " -j ACCEPT"}},
		{Table: "filter", Name: "KUBE-PROXY-FIREWALL", Rules: []string{set("LOAD-BALANCER-FW", "dst,dst") + " -j KUBE-SOURCE-RANGES-FIREWALL"}},
		{Table: "filter", Name: "KUBE-SOURCE-RANGES-FIREWALL", Rules: []string{set("LOAD-BALANCER-SOURCE-CIDR", "dst,dst,src") + " -j RETURN", "-j DROP"}},
		{Table: "filter", Name: "KUBE-IPVS-FILTER", Rules: []string{
			set("CLUSTER-IP", "dst,dst") + " -j RETURN", set("HEALTH-CHECK-NODE-PORT", "dst") + " -j RETURN",
			"-m conntrack --ctstate NEW " + set("IPVS-IPS", "dst") + " -j REJECT",
		}},
		{Table: "filter", Name: "KUBE-IPVS-OUT-FILTER"},
	}}
	jump := func(table, from, to, comment string) {
		out.Jumps = append(out.Jumps, fixedrules.Jump{Table: table, Chain: from, Rule: `-m comment --comment "` + comment + `" -j ` + to})
	}
	jump("nat", "PREROUTING", "KUBE-SERVICES", "kubernetes service portals")
	jump("nat", "OUTPUT", "KUBE-SERVICES", "kubernetes service portals")
	jump("nat", "POSTROUTING", "KUBE-POSTROUTING", "kubernetes postrouting rules")
	jump("filter", "INPUT", "KUBE-IPVS-FILTER", "kubernetes ipvs access filter")
	jump("filter", "INPUT", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules")
	jump("filter", "INPUT", "KUBE-NODE-PORT", "kubernetes health check rules")
	jump("filter", "FORWARD", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules")
	jump("filter", "FORWARD", "KUBE-FORWARD", "kubernetes forwarding rules")
	jump("filter", "OUTPUT", "KUBE-IPVS-OUT-FILTER", "kubernetes ipvs access filter")
	return out
}

// applies applies rules and reports whether that changed anything.
func applies(t *testing.T, k *FixedRules, want fixedrules.Rules) bool {
	t.Helper()
	changed, err := k.Apply(context.Background(), want)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func compareFixedRules(t *testing.T, k *FixedRules, want fixedrules.Rules) fixedrules.State {
	t.Helper()
	state, err := k.Compare(context.Background(), want)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// texts are the findings' texts and keys, sorted.
func texts(state fixedrules.State) (texts, keys []string) {
	for _, f := range state.Findings {
		texts, keys = append(texts, f.Text), append(keys, f.Key)
	}
	slices.Sort(texts)
	slices.Sort(keys)
	return texts, keys
}

// TestFixedRulesOnTheRealKernel: what was written is found to be the desired state, in
// whatever form iptables-save prints it, and what others change is found and
// written again.
func TestFixedRulesOnTheRealKernel(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		for _, family := range families {
			makeSets(t, family)
			program := filepath.Join(directory, commandOf(family))
			run(t, program, "-A", "INPUT", "-p", "icmp", "-j", "ACCEPT")
			want, fresh := ipvsRules(family), func() *FixedRules {
				return NewFixedRules(serversMode(), family, Options{Modes: twoModes(), Programs: NewPrograms(directory, "")})
			}
			k := fresh()
			if missing, _ := texts(compareFixedRules(t, k, want)); len(missing) != len(want.Chains)+len(want.Jumps) {
				t.Errorf("%s: on a fresh kernel: %q", family, missing)
			}
			if !applies(t, k, want) {
				t.Errorf("%s: nothing written", family)
			}
			if applies(t, k, want) || applies(t, fresh(), want) {
				t.Errorf("%s: written twice:\n%s", family, run(t, program+"-save"))
			}
			chains, rules := want.Counts()
			if got := compareFixedRules(t, fresh(), want); len(got.Findings) > 0 || got.Chains != chains || got.Rules != rules {
				t.Errorf("%s: %+v, want %d chains with %d rules", family, got, chains, rules)
			}
			save := withoutCounters(run(t, program+"-save"))
			run(t, program, "-D", "FORWARD", "-m", "comment", "--comment", "kubernetes forwarding rules", "-j", "KUBE-FORWARD")
			run(t, program, "-t", "nat", "-F", "KUBE-LOAD-BALANCER")
			run(t, program, "-I", "KUBE-NODE-PORT", "-i", "lo", "-j", "DROP", "-m", "comment", "--comment", "mine")
			damaged := []string{
				"fixed rules of KUBE-LOAD-BALANCER of nat differ", "fixed rules of KUBE-NODE-PORT of filter differ",
				`jump missing in FORWARD of filter: -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD`,
			}
			found, keys := texts(compareFixedRules(t, k, want))
			_, again := texts(compareFixedRules(t, fresh(), want))
			if diff := cmp.Diff(damaged, found); diff != "" || !slices.Equal(keys, again) || !strings.HasPrefix(keys[0], "iptables ") {
				t.Errorf("%s: keys %q and %q, found %s", family, keys, again, diff)
			}
			if !applies(t, k, want) || len(compareFixedRules(t, fresh(), want).Findings) > 0 {
				t.Errorf("%s: not repaired", family)
			}
			if diff := cmp.Diff(slices.Sorted(strings.Lines(save)), slices.Sorted(strings.Lines(withoutCounters(run(t, program+"-save"))))); diff != "" {
				t.Errorf("%s: %s", family, diff)
			}
			if err := k.Cleanup(context.Background()); err != nil {
				t.Fatal(err)
			}
			if left := withoutCounters(run(t, program+"-save")); strings.Contains(left, "KUBE") || !strings.Contains(left, "icmp -j ACCEPT") {
				t.Errorf("%s: left is\n%s", family, left)
			}
		}
	})
}

// withoutCounters is what iptables-save prints without comments and counters.
func withoutCounters(save string) string {
	var out strings.Builder
	for line := range strings.Lines(save) {
		if strings.HasPrefix(line, ":") {
			line, _, _ = strings.Cut(line, "[")
			line += "\n"
		}
		if !strings.HasPrefix(line, "#") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// TestModesFollowEachOtherOnTheRealKernel changes from mode to mode and back. In
// between both modes' rules stand together, and each time nothing is left of the
// one that was left.
func TestModesFollowEachOtherOnTheRealKernel(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		for _, family := range families {
			makeSets(t, family)
			followEachOther(t, family, directory)
		}
	})
}

func followEachOther(t *testing.T, family dataplane.Family, directory string) {
	t.Helper()
	commits := &Commits{}
	plane := New(family, Options{Modes: twoModes(), Programs: NewPrograms(directory, ""), Commits: commits})
	fixed := NewFixedRules(serversMode(), family, Options{Modes: twoModes(), Programs: NewPrograms(directory, ""), Commits: commits})
	rules, want := switchRuleset(family), ipvsRules(family)
	save := func() []string {
		return slices.Sorted(strings.Lines(withoutCounters(run(t, filepath.Join(directory, commandOf(family)+"-save")))))
	}
	clean := func() {
		t.Helper()
		if pending, err := plane.CleanupMode(context.Background(), rules); pending != "" || err != nil {
			t.Fatal(pending, err)
		}
	}
	leave := func() {
		t.Helper()
		if err := fixed.CleanupMode(context.Background(), v1alpha1.ModeIPTables); err != nil {
			t.Fatal(err)
		}
	}
	mustApply(t, plane, rules)
	inIPTables := save()
	applies(t, fixed, want)
	if applies(t, NewFixedRules(serversMode(), family, Options{Modes: twoModes(), Programs: NewPrograms(directory, "")}), want) {
		t.Errorf("%s: beside mode IPTables it is written twice", family)
	}
	clean()
	inIPVS := save()
	if err := fixed.Cleanup(context.Background()); err != nil {
		t.Fatal(err)
	}
	applies(t, fixed, want)
	if diff := cmp.Diff(save(), inIPVS); diff != "" {
		t.Errorf("%s: in mode IPVS, a fresh node (-) has other rules than one after mode IPTables (+): %s", family, diff)
	}
	for range 2 {
		rules.Full = true
		mustApply(t, plane, rules)
		if d, err := New(family, Options{Modes: twoModes(), Programs: NewPrograms(directory, "")}).Verify(context.Background(), rules, dataplane.VerifyOptions{}); err != nil || d.Count > 0 {
			t.Errorf("%s: beside mode IPVS: %+v, %v", family, d, err)
		}
		leave()
		if diff := cmp.Diff(inIPTables, save()); diff != "" {
			t.Errorf("%s: back in mode IPTables: %s", family, diff)
		}
		applies(t, fixed, want)
		clean()
		if diff := cmp.Diff(inIPVS, save()); diff != "" {
			t.Errorf("%s: in mode IPVS again: %s", family, diff)
		}
	}
	if err := errors.Join(plane.Cleanup(context.Background(), dataplane.CleanupOptions{}), fixed.Cleanup(context.Background())); err != nil {
		t.Error(err)
	}
	if left := strings.Join(save(), ""); strings.Contains(left, "KUBE-S") {
		t.Errorf("%s: left is\n%s", family, left)
	}
}

// switchRuleset has Services of all kinds.
func switchRuleset(family dataplane.Family) *dataplane.Ruleset {
	r, rng := newRuleset(), rand.New(rand.NewPCG(3, 3))
	for range 30 {
		s := randomService(rng)
		if family == dataplane.IPv6 {
			dataplanetest.InIPv6(s)
		}
		r.Services[s.Name] = s
	}
	if family == dataplane.IPv6 {
		r.Node.Addresses = addrs("2001:db8::2")
	}
	return r
}

// TestFixedRulesWritesNothingTwice: without reading, as long as no other program writes.
func TestFixedRulesWritesNothingTwice(t *testing.T) {
	var others uint32
	kernel := newFakeKernel()
	kernel.other = &others
	k := NewFixedRules(serversMode(), dataplane.IPv4, Options{Modes: twoModes(), Model: iptablesmodel.NewKernel()})
	k.kernel = kernel
	want := fixedrules.Rules{
		Chains: []fixedrules.Chain{
			{Table: "nat", Name: chainMarkMasq, Rules: []string{"-j MARK --or-mark 0x4000"}},
			{Table: "filter", Name: chainForward, Rules: []string{"-j " + chainNodePort}}, {Table: "filter", Name: chainNodePort},
		},
		Jumps: []fixedrules.Jump{{Table: "filter", Chain: "INPUT", Rule: "-j " + chainForward}, {Table: "filter", Chain: "INPUT", Rule: "-j " + chainNodePort}},
	}
	if !applies(t, k, want) || applies(t, k, want) || len(kernel.writes) != 1 || kernel.reads != 1 {
		t.Errorf("%d reads, written: %q", kernel.reads, kernel.writes)
	}
	if diff := cmp.Diff([]string{"-j " + chainForward, "-j " + chainNodePort}, kernel.chain(t, filter, "INPUT")); diff != "" {
		t.Error(diff)
	}
	for range maxUnread + 1 {
		compareFixedRules(t, k, want)
	}
	if kernel.reads != 2 {
		t.Errorf("%d reads", kernel.reads)
	}
	others++
	if applies(t, k, want) || kernel.reads != 3 {
		t.Errorf("after another's write: %d reads, written: %q", kernel.reads, kernel.writes)
	}
	kernel.fail = errors.New("killed")
	want.Jumps = want.Jumps[:1]
	want.Chains[1].Rules = nil
	if _, err := k.Apply(context.Background(), want); err == nil {
		t.Error("no error")
	}
	if !applies(t, k, want) {
		t.Error("a failed write is taken for done")
	}
}

func TestFixedRulesReportsWhatIsMissing(t *testing.T) {
	kernel := &lackingKernel{fakeKernel: newFakeKernel(), missing: []string{"set", "ipvs"}}
	k := NewFixedRules(serversMode(), dataplane.IPv4, Options{Modes: twoModes()})
	k.kernel = kernel
	err := k.Supported(context.Background())
	if !errors.Is(err, dataplane.ErrUnsupported) || !strings.Contains(err.Error(), "iptables lacks the match set, ipvs; load the kernel module xt_set, xt_ipvs (modprobe -a xt_set xt_ipvs)") {
		t.Error(err)
	}
	kernel.missing = nil
	if err := k.Supported(context.Background()); err != nil {
		t.Error(err)
	}
	kernel.missing = []string{"set"}
	if err := k.Supported(context.Background()); err != nil {
		t.Error("asked again:", err)
	}
}

type lackingKernel struct {
	*fakeKernel
	missing []string
}

func (k *lackingKernel) lacks(context.Context, []string) ([]string, error) { return k.missing, nil }

// TestLackingMatches asks this machine's programs.
func TestLackingMatches(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		tool := newTools(dataplane.IPv4, NewPrograms(directory, ""), &Commits{})
		if err := tool.find(context.Background()); err != nil {
			t.Fatal(err)
		}
		missing, err := tool.lacks(context.Background(), []string{"conntrack", "no-such-match", "set"})
		if err != nil || !slices.Equal(missing, []string{"no-such-match"}) {
			t.Errorf("missing are %q, %v", missing, err)
		}
	})
}

// TestCleanupModeReadsOnce: where nothing is left, as long as no other program writes.
func TestCleanupModeReadsOnce(t *testing.T) {
	var others uint32
	kernel := newFakeKernel()
	kernel.other = &others
	d := newDataplane(t, kernel)
	rules := switchRuleset(dataplane.IPv4)
	clean := func() {
		t.Helper()
		if pending, err := d.CleanupMode(context.Background(), rules); pending != "" || err != nil {
			t.Fatal(pending, err)
		}
	}
	mustApply(t, d, rules)
	kernel.reads = 0
	clean()
	for _, id := range kernel.chains() {
		if d.modes.ownsAlone(id) {
			t.Errorf("chain %s of %s is left", id.name, id.table)
		}
	}
	written := len(kernel.writes)
	for range 20 {
		clean()
	}
	if kernel.reads != 1 || len(kernel.writes) != written {
		t.Errorf("%d reads, written: %q", kernel.reads, kernel.writes[written:])
	}
	others++
	clean()
	if kernel.reads != 2 {
		t.Errorf("after another's write: %d reads", kernel.reads)
	}
	rules.Full = true
	if mustApply(t, d, rules); len(kernel.writes) == written {
		t.Error("an Apply after that writes nothing")
	}
	written = len(kernel.writes)
	if clean(); len(kernel.writes) == written {
		t.Error("a CleanupMode after that writes nothing")
	}
}

// TestCleanupModeLeavesOthers: chains to which others' rules jump, and those rules.
func TestCleanupModeLeavesOthers(t *testing.T) {
	kernel := newFakeKernel()
	d := newDataplane(t, kernel)
	rules := switchRuleset(dataplane.IPv4)
	mustApply(t, d, rules)
	kernel.set(t, chainID{filter, "MINE"}, "-j "+chainProxyFirewall, "-s 192.0.2.1 -j DROP")
	kernel.set(t, chainID{filter, "FORWARD"}, append(kernel.chain(t, filter, "FORWARD"), "-j MINE")...)
	if _, err := d.CleanupMode(context.Background(), rules); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"-j " + chainProxyFirewall, "-s 192.0.2.1 -j DROP"}, kernel.chain(t, filter, "MINE")); diff != "" {
		t.Error(diff)
	}
	if jumps := kernel.chain(t, filter, "FORWARD"); !slices.Equal(jumps, []string{`-m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD`, "-j MINE"}) {
		t.Errorf("%q", jumps)
	}
}
