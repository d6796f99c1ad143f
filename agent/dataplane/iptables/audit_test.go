package iptables

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// auditing is a node whose rules another program maintains, and who compares.
func auditing(t *testing.T, services ...*dataplane.Service) (*Dataplane, *fakeKernel, *dataplane.Ruleset) {
	t.Helper()
	k := newFakeKernel()
	other, r := newDataplane(t, k), newRuleset(services...)
	mustApply(t, other, r)
	k.writes = nil
	return newDataplane(t, k), k, r
}

func newDataplane(t *testing.T, k *fakeKernel) *Dataplane {
	t.Helper()
	d := New(dataplane.IPv4, Options{Modes: twoModes(), Model: k.tables})
	d.kernel = k
	return d
}

func audit(t *testing.T, d *Dataplane, r *dataplane.Ruleset) []string {
	t.Helper()
	a, err := d.Verify(context.Background(), r, dataplane.VerifyOptions{Audit: true})
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, f := range a.Findings {
		texts = append(texts, f.Service.String()+": "+f.Text)
	}
	slices.Sort(texts)
	return texts
}

func auditedService() *dataplane.Service {
	s := testService("ns1/svc1", "172.30.0.41", dataplane.Port{
		Name: "p80", NodePort: 3001, Cluster: endpoints("10.180.0.1:80", "10.180.0.2:80"), Available: true,
	})
	s.ExternalIPs, s.LoadBalancerIPs = addrs("192.168.99.11"), addrs("1.2.3.4")
	return s
}

func TestAuditFindsWhatOthersChange(t *testing.T) {
	const svc, sep = "KUBE-SVC-XPGD46QRK7WJZT7O", "KUBE-SEP-SXIVWICOYRO3J4NJ"
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, k *fakeKernel)
		want   []string
	}{
		{"nothing", func(*testing.T, *fakeKernel) {}, nil},
		{"a chain differs", func(t *testing.T, k *fakeKernel) {
			k.set(t, chainID{nat, svc}, "-j "+sep)
		}, []string{"ns1/svc1: chain " + svc + " differs in nat (Service ns1/svc1)"}},
		{"a rule is missing", func(t *testing.T, k *fakeKernel) {
			k.set(t, chainID{nat, chainNodePorts})
		}, []string{`ns1/svc1: rule missing in KUBE-NODEPORTS of nat (Service ns1/svc1): -m comment --comment ns1/svc1:p80 -m tcp -p tcp --dport 3001 -j KUBE-EXT-XPGD46QRK7WJZT7O`}},
		{"a rule of another Service", func(t *testing.T, k *fakeKernel) {
			rules := k.chain(t, nat, chainServices)
			k.set(t, chainID{nat, chainServices}, append([]string{`-d 172.30.0.99/32 -p tcp -m comment --comment "ns2/gone:x cluster IP" -m tcp --dport 80 -j ` + svc}, rules...)...)
		}, []string{`ns2/gone: unexpected rule in KUBE-SERVICES of nat: -d 172.30.0.99/32 -p tcp -m comment --comment "ns2/gone:x cluster IP" -m tcp --dport 80 -j ` + svc}},
		{"fixed rules", func(t *testing.T, k *fakeKernel) {
			k.set(t, chainID{nat, chainMarkMasq})
		}, []string{"/: fixed rules of KUBE-MARK-MASQ of nat differ"}},
		{"a jump", func(t *testing.T, k *fakeKernel) {
			k.set(t, chainID{nat, "POSTROUTING"})
		}, []string{`/: jump missing in POSTROUTING of nat: -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`}},

		// What kube-proxy has besides.
		{"a chain that nothing leads to", func(t *testing.T, k *fakeKernel) {
			k.set(t, chainID{nat, "KUBE-SVC-AAAAAAAAAAAAAAAA"}, "-j RETURN")
		}, nil},
		{"its canaries", func(t *testing.T, k *fakeKernel) {
			k.set(t, chainID{nat, "KUBE-PROXY-CANARY"})
			k.set(t, chainID{filter, "KUBE-PROXY-CANARY"})
		}, nil},
		{"an address of the load balancer that is an external IP", func(t *testing.T, k *fakeKernel) {
			rules := k.chain(t, nat, chainServices)
			k.set(t, chainID{nat, chainServices}, slices.Insert(rules, len(rules)-1, `-d 192.168.99.11/32 -p tcp -m comment --comment "ns1/svc1:p80 loadbalancer IP" -m tcp --dport 80 -j KUBE-FW-XPGD46QRK7WJZT7O`)...)
		}, nil},
		{"an address of the load balancer that is none", func(t *testing.T, k *fakeKernel) {
			rules := k.chain(t, nat, chainServices)
			k.set(t, chainID{nat, chainServices}, slices.Insert(rules, len(rules)-1, `-d 192.168.99.12/32 -p tcp -m comment --comment "ns1/svc1:p80 loadbalancer IP" -m tcp --dport 80 -j KUBE-EXT-XPGD46QRK7WJZT7O`)...)
		}, []string{`ns1/svc1: unexpected rule in KUBE-SERVICES of nat: -d 192.168.99.12/32 -p tcp -m comment --comment "ns1/svc1:p80 loadbalancer IP" -m tcp --dport 80 -j KUBE-EXT-XPGD46QRK7WJZT7O`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, k, r := auditing(t, auditedService())
			tt.change(t, k)
			if diff := cmp.Diff(tt.want, audit(t, d, r)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			if len(k.writes) > 0 {
				t.Errorf("written: %q", k.writes)
			}
		})
	}
}

// TestRulesThatCount are kube-proxy's for packets by 127.0.0.1, which the model of
// the kernel does not know.
func TestRulesThatCount(t *testing.T) {
	d, _, r := auditing(t, auditedService())
	audit(t, d, r)
	const counts = "-m nfacct --nfacct-name localhost_nps_accepted_pkts "
	for spec, want := range map[string]bool{
		"-d 127.0.0.0/8 -p tcp -m comment --comment ns1/svc1:p80 -m tcp --dport 3001 " + counts + "-j KUBE-EXT-XPGD46QRK7WJZT7O": true,
		"-d 127.0.0.0/8 -p tcp -m comment --comment ns1/svc1:p80 -m tcp --dport 3002 " + counts + "-j KUBE-EXT-XPGD46QRK7WJZT7O": false,
		"-d 127.0.0.0/8 -p tcp -m comment --comment ns1/svc1:p80 -m tcp --dport 3001 " + counts + "-j KUBE-EXT-AAAAAAAAAAAAAAAA": false,
		"-d 127.0.0.0/8 -p tcp -m comment --comment ns1/svc1:p80 -m tcp --dport 3001 -j KUBE-EXT-XPGD46QRK7WJZT7O":               false,
		"-p tcp -m comment --comment ns1/svc1:p80 -m tcp --dport 3001 " + counts + "-j KUBE-EXT-XPGD46QRK7WJZT7O":                false,
	} {
		if got := newBesides(d.audited.want).idle(found{kind: ruleUnexpected, in: chainID{nat, chainNodePorts}, spec: spec}); got != want {
			t.Errorf("%s: idle %v, want %v", spec, got, want)
		}
	}
}

// TestTailInAnyOrder: kube-proxy writes the rules for NodePorts on several
// addresses in no order.
func TestTailInAnyOrder(t *testing.T) {
	d, k, r := auditing(t, auditedService())
	d.interfaceIPs = func() ([]netip.Addr, error) { return addrs("192.168.0.2", "192.168.0.3"), nil }
	r.Node = testNode(func(s *v1alpha1.ProxySettings) {
		s.NodePorts = &v1alpha1.NodePortSettings{AddressMode: new(v1alpha1.NodePortsCIDRs), CIDRs: []string{"192.168.0.0/24"}, Localhost: new(v1alpha1.Disabled)}
	})
	if len(audit(t, d, r)) == 0 {
		t.Fatal("other addresses make no difference")
	}
	tail := d.audited.want.config.nodePortTail()
	if len(tail) != 2 {
		t.Fatalf("tail %q", tail)
	}
	rules := k.chain(t, nat, chainServices)
	rules = rules[:len(rules)-1]
	for _, order := range [][]string{tail, {tail[1], tail[0]}} {
		k.set(t, chainID{nat, chainServices}, append(slices.Clone(rules), order...)...)
		if got := audit(t, d, r); len(got) != 0 {
			t.Errorf("in order %q: %q", order, got)
		}
	}
	k.set(t, chainID{nat, chainServices}, append(slices.Clone(rules), tail[0], tail[0])...)
	if got := audit(t, d, r); len(got) == 0 {
		t.Error("one twice, the other not at all: nothing found")
	}
}

// TestKeysDistinguishDifferences: what lasts must be the same difference.
func TestKeysDistinguishDifferences(t *testing.T) {
	d, k, r := auditing(t, auditedService())
	key := func() string {
		t.Helper()
		a, err := d.Verify(context.Background(), r, dataplane.VerifyOptions{Audit: true})
		if err != nil || len(a.Findings) != 1 {
			t.Fatalf("findings %+v, %v", a.Findings, err)
		}
		return a.Findings[0].Key
	}
	id := chainID{nat, "KUBE-SVC-XPGD46QRK7WJZT7O"}
	k.set(t, id, "-j KUBE-SEP-SXIVWICOYRO3J4NJ")
	first := key()
	if again := key(); again != first {
		t.Errorf("the same difference has keys %q and %q", first, again)
	}
	k.set(t, id, "-j RETURN")
	if key() == first {
		t.Error("the kernel has something else, but the key is the same")
	}
	k.set(t, id, "-j KUBE-SEP-SXIVWICOYRO3J4NJ")
	s := auditedService()
	s.AffinitySeconds = 10
	r.Services[s.Name] = s
	a, err := d.Verify(context.Background(), r, dataplane.VerifyOptions{Audit: true})
	if err != nil || len(a.Findings) == 0 || slices.ContainsFunc(a.Findings, func(f dataplane.Finding) bool { return f.Key == first }) {
		t.Errorf("the desired state differs, but the key is the same: %+v, %v", a.Findings, err)
	}
}

func TestAuditReadsOnlyWhatMayHaveChanged(t *testing.T) {
	d, k, r := auditing(t, auditedService())
	writes := uint32(7)
	k.other = &writes
	k.reads = 0
	expect := func(when string, reads int) {
		t.Helper()
		if got := audit(t, d, r); got != nil {
			t.Errorf("%s: %q", when, got)
		}
		if k.reads != reads {
			t.Errorf("%s: the kernel was read %d times, want %d", when, k.reads, reads)
		}
	}
	expect("initially", 1)
	expect("nothing has happened", 1)
	writes++
	expect("another program has written", 2)
	s := auditedService()
	r.Services[s.Name] = s
	expect("a Service was replaced", 3)
	r.Prune = false
	expect("nothing may be too many any more", 4)
	for range maxUnread {
		expect("nothing has happened", 4)
	}
	expect("now and then it is read anyhow", 5)
	k.other = nil
	expect("the kernel does not report", 6)
	expect("the kernel does not report", 7)
}

// TestAuditWarnsNowAndThen: finding out what to warn of takes long.
func TestAuditWarnsNowAndThen(t *testing.T) {
	d, k, r := auditing(t, auditedService())
	k.warn = []string{"the kubelet uses another variant"}
	for i := range 2 * warnEvery {
		a, err := d.Verify(context.Background(), r, dataplane.VerifyOptions{Audit: true})
		if want := map[bool]int{true: 1}[i < warnEvery]; err != nil || len(a.Warnings) != want {
			t.Fatalf("comparison %d: warnings %q, %v", i, a.Warnings, err)
		}
		k.warn = nil
	}
}

// TestAuditTrustsNothing: what this agent wrote before is not what the kernel
// has.
func TestAuditTrustsNothing(t *testing.T) {
	k := newFakeKernel()
	d, r := newDataplane(t, k), newRuleset(auditedService())
	mustApply(t, d, r)
	k.set(t, chainID{nat, chainNodePorts})
	if got := audit(t, d, r); len(got) != 1 {
		t.Errorf("findings %q", got)
	}
	k.writes = nil
	mustApply(t, d, r) // not asked to be full
	if len(k.writes) == 0 || len(audit(t, d, r)) != 0 {
		t.Errorf("written after Audit: %q", k.writes)
	}
}

func TestAuditFails(t *testing.T) {
	d, k, r := auditing(t, auditedService())
	k.unread = errors.New("the table nat cannot be printed")
	if _, err := d.Verify(context.Background(), r, dataplane.VerifyOptions{Audit: true}); err == nil || !strings.Contains(err.Error(), "cannot be printed") {
		t.Errorf("error %v", err)
	}
	k.unread = nil
	if got := audit(t, d, r); got != nil {
		t.Errorf("findings %q", got)
	}
}

// TestApplyForgetsTheAudit: a second plan of all Services is large.
func TestApplyForgetsTheAudit(t *testing.T) {
	d, k, r := auditing(t, auditedService())
	audit(t, d, r)
	if d.audited == nil {
		t.Fatal("nothing is remembered of a comparison")
	}
	k.unread = errors.New("the table nat cannot be printed")
	if _, err := d.Apply(context.Background(), r); err == nil || d.audited != nil {
		t.Errorf("error %v; a plan is preserved: %v", err, d.audited != nil)
	}
}
