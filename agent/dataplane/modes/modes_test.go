package modes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	rules   = v1alpha1.ModeIPTables
	servers = v1alpha1.ModeIPVS
)

// node is one with two modes, whose kernel outlives an agent.
type node struct {
	t        *testing.T
	kernel   map[v1alpha1.ProxyMode]*dataplanetest.Fake
	plane    *Dataplane
	services map[dataplane.ServiceName]*dataplane.Service
	fresh    bool // the next Apply is the agent's first
}

func newNode(t *testing.T) *node {
	n := &node{
		t:        t,
		kernel:   map[v1alpha1.ProxyMode]*dataplanetest.Fake{rules: dataplanetest.NewFake(), servers: dataplanetest.NewFake()},
		services: map[dataplane.ServiceName]*dataplane.Service{},
	}
	n.restart()
	n.set("cart")
	return n
}

func (n *node) restart() {
	var planes []Plane
	for mode, fake := range n.kernel {
		planes = append(planes, Plane{Of(mode), fake})
	}
	n.plane, n.fresh = New(planes...), true
}

func (n *node) set(name string) dataplane.ServiceName {
	id := dataplane.ServiceName{Namespace: "shop", Name: name}
	n.services[id] = &dataplane.Service{Name: id, Ports: []dataplane.Port{{Port: 80}}}
	return id
}

// ruleset is one that a first Apply is full for.
func (n *node) ruleset(mode v1alpha1.ProxyMode, dirty ...dataplane.ServiceName) *dataplane.Ruleset {
	r := &dataplane.Ruleset{
		Mode: mode, Services: n.services, Dirty: map[dataplane.ServiceName]struct{}{}, Full: n.fresh, Prune: true,
	}
	for _, name := range dirty {
		r.Dirty[name] = struct{}{}
	}
	return r
}

func (n *node) apply(r *dataplane.Ruleset) dataplane.Result {
	n.t.Helper()
	result, err := n.plane.Apply(n.t.Context(), r)
	if err != nil {
		n.t.Fatal(err)
	}
	n.fresh = false
	return result
}

// expect compares what each mode has in the kernel.
func (n *node) expect(when string, want map[v1alpha1.ProxyMode]string) {
	n.t.Helper()
	got := map[v1alpha1.ProxyMode]string{}
	for mode, fake := range n.kernel {
		if held := fake.Services(); len(held) > 0 {
			got[mode] = strings.Join(held, " ")
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		n.t.Errorf("%s, the kernel (-want +got):\n%s", when, diff)
	}
}

type held = map[v1alpha1.ProxyMode]string

func TestSwitch(t *testing.T) {
	n := newNode(t)
	if n.plane.Uses(rules) {
		t.Error("a mode is used before the first Apply")
	}
	n.apply(n.ruleset(rules))
	n.expect("initially", held{rules: "shop/cart"})
	if !n.plane.Uses(rules) || n.plane.Uses(servers) {
		t.Error("not the mode that was applied is used")
	}

	blog := n.set("blog")
	n.apply(n.ruleset(servers, blog)) // not asked to be full
	n.expect("after the switch", held{servers: "shop/blog shop/cart"})

	n.apply(n.ruleset(rules))
	n.expect("after the way back", held{rules: "shop/blog shop/cart"})
	if n.plane.Uses(servers) {
		t.Error("what is cleaned up is still used")
	}
}

func TestOldModeStaysUntilRemovingIsAllowed(t *testing.T) {
	n := newNode(t)
	n.apply(n.ruleset(rules))
	n.restart() // it is not known which mode ran
	r := n.ruleset(servers)
	r.Prune = false
	if result := n.apply(r); result.CleanupPending != "" || !result.OwnFlows {
		t.Errorf("cleanup pending %q, own flows %t", result.CleanupPending, result.OwnFlows)
	}
	n.expect("without a confirmed list", held{rules: "shop/cart", servers: "shop/cart"})
	r = n.ruleset(servers)
	r.Full = true
	n.apply(r)
	n.expect("with one", held{servers: "shop/cart"})
}

func TestRestartInTheMiddleOfASwitch(t *testing.T) {
	n := newNode(t)
	n.apply(n.ruleset(servers))
	n.kernel[servers].Drain("2 connections")
	result := n.apply(n.ruleset(rules))
	if want := "cleanup of mode IPVS is pending: 2 connections"; result.CleanupPending != want || !result.OwnFlows {
		t.Errorf("cleanup pending %q, want %q; own flows %t", result.CleanupPending, want, result.OwnFlows)
	}
	n.restart()
	n.apply(n.ruleset(rules))
	n.expect("after a restart", held{rules: "shop/cart", servers: "shop/cart"})
	n.kernel[servers].Drain("")
	if result := n.apply(n.ruleset(rules)); result.CleanupPending != "" || result.OwnFlows {
		t.Errorf("cleanup pending %q, own flows %t", result.CleanupPending, result.OwnFlows)
	}
	n.expect("once connections have ended", held{rules: "shop/cart"})
}

func TestNewModeFails(t *testing.T) {
	n := newNode(t)
	n.apply(n.ruleset(rules))
	busy := errors.New("device or resource busy")
	n.kernel[servers].Fail(busy)
	blog := n.set("blog")
	_, err := n.plane.Apply(t.Context(), n.ruleset(servers, blog))
	if !errors.Is(err, busy) || !strings.Contains(err.Error(), "mode IPVS cannot be applied, mode IPTables continues") {
		t.Errorf("error %v", err)
	}
	n.expect("while the new mode fails", held{rules: "shop/blog shop/cart"})
	if mode := n.kernel[rules].Mode(); mode != rules {
		t.Errorf("the mode that continues was asked for mode %s", mode)
	}
	n.kernel[servers].Fail(nil)
	n.apply(n.ruleset(servers))
	n.expect("when it works", held{servers: "shop/blog shop/cart"})

	n.restart()
	n.kernel[rules].Fail(busy)
	if _, err := n.plane.Apply(t.Context(), n.ruleset(rules)); !errors.Is(err, busy) || strings.Contains(err.Error(), "continues") {
		t.Errorf("error %v", err)
	}
	n.expect("where it is not known what ran", held{servers: "shop/blog shop/cart"})
}

// TestRulesThatFailAreTakenBack: they come before the virtual servers that go on.
func TestRulesThatFailAreTakenBack(t *testing.T) {
	n := newNode(t)
	n.apply(n.ruleset(servers))
	n.kernel[rules].Fail(errors.New("line 3 failed"))
	n.kernel[rules].Plant(&dataplane.Service{Name: dataplane.ServiceName{Namespace: "shop", Name: "half"}})
	if _, err := n.plane.Apply(t.Context(), n.ruleset(rules)); err == nil {
		t.Error("no error")
	}
	n.expect("after a half", held{servers: "shop/cart"})
}

func TestBothModesFail(t *testing.T) {
	n := newNode(t)
	n.apply(n.ruleset(rules))
	one, two := errors.New("one"), errors.New("two")
	n.kernel[servers].Fail(one)
	n.kernel[rules].Fail(two)
	if _, err := n.plane.Apply(t.Context(), n.ruleset(servers)); !errors.Is(err, one) || !errors.Is(err, two) {
		t.Errorf("error %v", err)
	}
}

func TestUnsupportedMode(t *testing.T) {
	n := newNode(t)
	n.kernel[servers].Lack("no ip_vs")
	if err := n.plane.Supported(t.Context(), n.ruleset(servers)); !errors.Is(err, dataplane.ErrUnsupported) {
		t.Errorf("IPVS: %v", err)
	}
	if err := n.plane.Supported(t.Context(), n.ruleset(rules)); err != nil {
		t.Errorf("iptables: %v", err)
	}
	if _, err := n.plane.Apply(t.Context(), n.ruleset(servers)); !errors.Is(err, dataplane.ErrUnsupported) {
		t.Errorf("applied: %v", err)
	}
	if _, err := n.plane.Apply(t.Context(), n.ruleset("Magic")); !errors.Is(err, dataplane.ErrUnsupported) {
		t.Errorf("an unknown mode: %v", err)
	}
	n.apply(n.ruleset(rules))
	if n.plane.Uses(servers) {
		t.Error("a mode that the node lacks is used")
	}
}

func TestRejectedServices(t *testing.T) {
	n := newNode(t)
	n.apply(n.ruleset(servers))
	n.kernel[rules].Reject("shop", "cart", "no module")
	if result := n.apply(n.ruleset(rules)); !strings.Contains(result.CleanupPending, "mode IPTables rejects") {
		t.Errorf("cleanup pending %q", result.CleanupPending)
	}
	n.expect("while rules are rejected", held{servers: "shop/cart"})
	n.kernel[rules].Reject("shop", "cart", "")
	n.apply(n.ruleset(rules, slices.Collect(maps.Keys(n.services))...))
	n.expect("once they are taken", held{rules: "shop/cart"})

	n.kernel[servers].Reject("shop", "cart", "another program's virtual server")
	n.apply(n.ruleset(servers))
	n.expect("where nothing could reach the rules", held{})
}

// TestRejectedServicesDoNotKeepAModeForGood: after a while it is removed all the same.
func TestRejectedServicesDoNotKeepAModeForGood(t *testing.T) {
	n := newNode(t)
	clk := testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	n.plane.Clock = clk
	n.apply(n.ruleset(servers))
	n.kernel[rules].Reject("shop", "cart", "no module")
	n.apply(n.ruleset(rules))
	clk.Step(15*time.Minute - time.Second)
	n.apply(n.ruleset(rules))
	n.expect("while it may stay", held{servers: "shop/cart"})
	clk.Step(time.Second)
	if result := n.apply(n.ruleset(rules)); result.CleanupPending != "" {
		t.Errorf("cleanup pending %q", result.CleanupPending)
	}
	n.expect("after that", held{})
}

func TestCleanupFails(t *testing.T) {
	n := newNode(t)
	n.apply(n.ruleset(servers))
	busy := errors.New("busy")
	n.kernel[servers].FailCleanupMode(busy)
	result := n.apply(n.ruleset(rules))
	if len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "cleanup of mode IPVS failed: busy") {
		t.Errorf("warnings %v", result.Warnings)
	}
	n.kernel[servers].FailCleanupMode(nil)
	n.apply(n.ruleset(rules))
	n.expect("when it works", held{rules: "shop/cart"})

	n.kernel[rules].FailCleanupMode(busy)
	blog := n.set("blog")
	_, err := n.plane.Apply(t.Context(), n.ruleset(servers, blog))
	if !errors.Is(err, busy) || !strings.Contains(err.Error(), "mode IPTables continues") {
		t.Errorf("error %v", err)
	}
	n.expect("while rules come before virtual servers", held{rules: "shop/blog shop/cart", servers: "shop/blog shop/cart"})
	n.kernel[rules].FailCleanupMode(nil)
	n.apply(n.ruleset(servers))
	n.expect("when that works", held{servers: "shop/blog shop/cart"})
}

// TestFullPassLooksAgain: another proxy may have had its turn in between.
func TestFullPassLooksAgain(t *testing.T) {
	n := newNode(t)
	n.apply(n.ruleset(rules))
	n.kernel[servers].Plant(&dataplane.Service{Name: dataplane.ServiceName{Namespace: "shop", Name: "old"}})
	n.apply(n.ruleset(rules))
	n.expect("after a partial pass", held{rules: "shop/cart", servers: "shop/old"})
	r := n.ruleset(rules)
	r.Full = true
	n.apply(r)
	n.expect("after a full one", held{rules: "shop/cart"})
}

func TestVerifyAndAuditUseTheDesiredMode(t *testing.T) {
	n := newNode(t)
	n.apply(n.ruleset(rules))
	d, err := n.plane.Verify(t.Context(), n.ruleset(rules), dataplane.VerifyOptions{})
	if err != nil || d.Count != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	a, err := n.plane.Verify(t.Context(), n.ruleset(servers), dataplane.VerifyOptions{Audit: true})
	if err != nil || len(a.Findings) != 1 || n.kernel[rules].Audits() != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	n.expect("after both", held{rules: "shop/cart"})
}

func TestCleanup(t *testing.T) {
	n := newNode(t)
	n.apply(n.ruleset(servers))
	n.kernel[rules].Plant(&dataplane.Service{})
	if err := n.plane.Cleanup(t.Context(), dataplane.CleanupOptions{}); err != nil {
		t.Fatal(err)
	}
	n.expect("after a clean-up", held{})
	if n.plane.Uses(servers) {
		t.Error("what is removed is still used")
	}
	none := fmt.Errorf("no program: %w", dataplane.ErrUnsupported)
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		rules, servers error
		absent         bool // the family is passed over
		want           string
	}{
		"IPVS lacks something": {nil, none, false, "mode IPVS: no program"},
		"IPVS fails":           {nil, boom, false, "mode IPVS: boom"},
		"no iptables":          {none, nil, true, "no program"},
		"nothing":              {none, none, true, "no program"},
		"both fail":            {none, boom, false, "no program: not supported on this node\nmode IPVS: boom"},
		"iptables fails":       {boom, none, false, "mode IPTables: boom\nmode IPVS: no program"},
	} {
		n.kernel[rules].Fail(tt.rules)
		n.kernel[servers].Fail(tt.servers)
		err := n.plane.Cleanup(t.Context(), dataplane.CleanupOptions{})
		if err == nil || errors.Is(err, dataplane.ErrUnsupported) != tt.absent || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFollowsTheModeThatRuns(t *testing.T) {
	n := newNode(t)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	changes, facts := make(chan dataplane.Change), make(chan struct{})
	wg.Go(func() { n.plane.Watch(ctx, func(c dataplane.Change) { changes <- c }) })
	wg.Go(func() { n.plane.Follow(ctx, func() { facts <- struct{}{} }) })
	for _, mode := range []v1alpha1.ProxyMode{rules, servers, rules} {
		n.apply(n.ruleset(mode))
		go n.kernel[mode].ReportChange(dataplane.Change{By: string(mode)})
		if c := <-changes; c.By != string(mode) {
			t.Errorf("a change by %s, want %s", c.By, mode)
		}
		go n.kernel[mode].ChangeFacts()
		<-facts
	}
	stop()
	wg.Wait()
}

func TestRepeatsPendingCleanup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		var looks atomic.Int32
		go n.plane.Follow(t.Context(), func() { looks.Add(1) })
		n.apply(n.ruleset(rules))
		n.kernel[rules].Drain("connections")
		n.apply(n.ruleset(servers))
		<-time.After(cleanupPause - time.Millisecond)
		synctest.Wait()
		if looks.Load() != 0 {
			t.Error("it was looked too early")
		}
		<-time.After(time.Millisecond)
		synctest.Wait()
		if looks.Load() != 1 {
			t.Errorf("%d looks", looks.Load())
		}
		n.kernel[rules].Drain("")
		n.apply(n.ruleset(servers))
		<-time.After(10 * cleanupPause)
		synctest.Wait()
		if looks.Load() != 1 {
			t.Errorf("%d looks after all has gone", looks.Load())
		}
	})
}

// excluding is a data plane that notes what to exclude.
type excluding struct {
	*dataplanetest.Fake
	excluded []netip.Prefix
}

func (e *excluding) Cleanup(_ context.Context, o dataplane.CleanupOptions) error {
	e.excluded = o.PreservedRanges
	return nil
}

func TestExcludeReachesTheModeThatAsks(t *testing.T) {
	plane := &excluding{Fake: dataplanetest.NewFake()}
	d := New(Plane{Of(rules), dataplanetest.NewFake()}, Plane{Of(servers), plane})
	fanout := dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: d})
	ranges, err := dataplane.ParsePreserved([]string{"10.0.0.0/8"})
	if err = errors.Join(err, fanout.Cleanup(t.Context(), dataplane.CleanupOptions{PreservedRanges: ranges})); err != nil || len(plane.excluded) != 1 {
		t.Errorf("%v, excluded %v", err, plane.excluded)
	}
}

// TestSupportIsAskedOnce in a pass.
func TestSupportIsAskedOnce(t *testing.T) {
	n := newNode(t)
	if err := n.plane.Supported(t.Context(), n.ruleset(servers)); err != nil {
		t.Fatal(err)
	}
	n.apply(n.ruleset(servers))
	if asked := n.kernel[servers].Asked(servers); asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	n.fresh = true
	n.apply(n.ruleset(servers))
	if asked := n.kernel[servers].Asked(servers); asked != 2 {
		t.Errorf("asked %d times by the next pass", asked)
	}
}

func TestDeclarations(t *testing.T) {
	all := Declarations()
	baselines := 0
	for i, d := range all {
		if d.Baseline {
			baselines++
		}
		if i > 0 && !all[i-1].Precedes(&d) {
			t.Errorf("%s comes after %s, but does not follow it", d.Mode, all[i-1].Mode)
		}
		if got := Of(d.Mode); got.Mode != d.Mode || models[d.Mode] == nil {
			t.Errorf("%s is not known, or has no model", d.Mode)
		}
	}
	if unknown := Of("Magic"); baselines != 1 || !all[len(all)-1].Precedes(&unknown) {
		t.Errorf("%d baselines, an unknown mode %+v", baselines, unknown)
	}
}

// TestNodeWithoutPrograms: mode NFTables needs none, and what cannot be read there is not ours.
func TestNodeWithoutPrograms(t *testing.T) {
	n := newNode(t)
	n.kernel[v1alpha1.ModeNFTables] = dataplanetest.NewFake()
	n.restart()
	none := fmt.Errorf("no program: %w", dataplane.ErrUnsupported)
	n.kernel[rules].FailCleanupMode(none)
	n.kernel[servers].FailCleanupMode(none)
	if result := n.apply(n.ruleset(v1alpha1.ModeNFTables)); len(result.Warnings) > 0 || result.CleanupPending != "" {
		t.Errorf("warnings %q, pending %q", result.Warnings, result.CleanupPending)
	}

	n.kernel[rules].FailCleanupMode(nil)
	n.apply(n.ruleset(rules))
	n.expect("after the way to mode IPTables", held{rules: "shop/cart"})
	n.apply(n.ruleset(v1alpha1.ModeNFTables))
	n.expect("after the way back", held{v1alpha1.ModeNFTables: "shop/cart"})
	n.apply(n.ruleset(rules))
	n.kernel[rules].FailCleanupMode(none) // its programs were removed since
	if result := n.apply(n.ruleset(v1alpha1.ModeNFTables)); len(result.Warnings) != 1 {
		t.Errorf("mode IPTables cannot be cleaned up; warnings %q", result.Warnings)
	}
}
