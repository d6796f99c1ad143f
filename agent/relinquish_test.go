package agent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// preceding is a data plane whose table no other proxy takes over.
type preceding struct {
	*dataplanetest.Fake

	mu    sync.Mutex // guards everything below
	table bool
	stuck error
	asked int
}

func (p *preceding) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	p.set(func() { p.table = true })
	return p.Fake.Apply(ctx, r)
}

func (p *preceding) Relinquish(_ context.Context, serves bool) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	switch {
	case serves && p.stuck != nil:
		return "table ip nodeproxy", p.stuck
	case serves:
		p.table = false
	}
	if p.table {
		return "table ip nodeproxy", nil
	}
	return "", nil
}

func (p *preceding) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *preceding) state() (table bool, asked int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table, p.asked
}

// relinquishing runs a test with an agent that has a table which another proxy does not take over.
// Serves makes the other proxy serve.
func relinquishing(t *testing.T, prepare func(*ownershipRig, *preceding), test func(t *testing.T, r ownershipRig, p *preceding, serves func())) {
	t.Helper()
	p := &preceding{}
	var serving atomic.Bool
	runPrepared(t, func(r *ownershipRig) {
		p.Fake = r.kernel
		r.fanout = dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: p})
		r.options.Serving = func(context.Context) map[dataplane.Family]bool {
			return map[dataplane.Family]bool{dataplane.IPv4: serving.Load()}
		}
		prepare(r, p)
	}, func(t *testing.T, r ownershipRig) { test(t, r, p, func() { serving.Store(true) }) })
}

// TestRelinquish: what another proxy does not take over stays until that serves.
func TestRelinquish(t *testing.T) {
	relinquishing(t, func(*ownershipRig, *preceding) {}, func(t *testing.T, r ownershipRig, p *preceding, serves func()) {
		expect := func(when string, table bool, text string) {
			t.Helper()
			has, _ := p.state()
			reason, message := r.condition()
			if has != table || reason != v1alpha1.ReasonConflictingProxy || strings.Contains(message, "table ip nodeproxy") != table || !strings.Contains(message, text) {
				t.Errorf("%s: the table exists: %v; %s: %s", when, has, reason, message)
			}
		}
		after(time.Second)
		r.ports.become("kube-proxy answers")
		after(6 * time.Second)
		expect("it has not programmed Services yet", true, `run "nodeproxy-agent cleanup"`)
		after(time.Hour)
		expect("still not", true, `run "nodeproxy-agent cleanup"`)
		p.set(func() { p.stuck = errors.New("busy") })
		serves()
		after(5 * time.Second)
		expect("it cannot be removed", true, "")
		p.set(func() { p.stuck = nil })
		after(30 * time.Second)
		expect("it serves", false, "")
		if lines := r.log.With("Removed what another proxy does not take over"); len(lines) != 1 {
			t.Errorf("log %q", lines)
		}
		_, asked := p.state()
		after(time.Hour)
		if _, now := p.state(); now != asked {
			t.Errorf("asked %d times more although nothing remains", now-asked)
		}
		r.ports.become("")
		after(time.Minute)
		if has, _ := p.state(); !has || !r.owner.MayWrite() {
			t.Errorf("once the other proxy has gone: the table exists: %v", has)
		}
		r.ports.become("kube-proxy answers")
		after(10 * time.Second)
		expect("it serves again", false, "")
	})
}

// TestRelinquishAfterRestart: the agent finds what its earlier run has left.
func TestRelinquishAfterRestart(t *testing.T) {
	relinquishing(t, func(r *ownershipRig, p *preceding) {
		p.table = true
		r.ports.become("kube-proxy answers")
	}, func(t *testing.T, r ownershipRig, p *preceding, serves func()) {
		serves()
		after(3 * time.Second)
		if has, _ := p.state(); has {
			t.Error("the table remains")
		}
		if r.kernel.Writes() > 0 {
			t.Error("written beside another proxy")
		}
	})
}

// TestRelinquishInAudit: nothing else is written then.
func TestRelinquishInAudit(t *testing.T) {
	relinquishing(t, func(r *ownershipRig, p *preceding) {
		p.table = true
		r.ports.become("kube-proxy answers")
		r.rig.SetRules(r.rig.Node(inAudit))
	}, func(t *testing.T, r ownershipRig, p *preceding, serves func()) {
		after(time.Minute)
		if _, message := r.condition(); !strings.Contains(message, "still meet outdated rules of nodeproxy first (table ip nodeproxy)") {
			t.Errorf("it has not programmed Services yet: %s", message)
		}
		if has, _ := p.state(); !has {
			t.Error("removed before the other proxy serves")
		}
		serves()
		after(10 * time.Second)
		has, asked := p.state()
		if _, message := r.condition(); has || strings.Contains(message, "nodeproxy first") {
			t.Errorf("it serves: the table exists: %v; %s", has, message)
		}
		audits := r.kernel.Audits()
		after(5 * time.Second)
		if _, now := p.state(); now != asked || r.kernel.Audits() != audits {
			t.Errorf("asked %d and compared %d times more although nothing remains", now-asked, r.kernel.Audits()-audits)
		}
		if r.kernel.Writes() > 0 {
			t.Error("written in Audit")
		}
	})
}

// TestRelinquishBeforeRemovalEnds: what precedes another proxy's rules goes once that serves, or after
// a while, and all else stays.
func TestRelinquishBeforeRemovalEnds(t *testing.T) {
	for name, audit := range map[string]bool{"in Enforce": false, "in Audit": true} {
		for _, reports := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				relinquishing(t, func(r *ownershipRig, p *preceding) {
					p.table = true
					r.kernel.Plant(combined("a"))
					r.ports.become("kube-proxy answers")
					if audit {
						r.rig.SetRules(r.rig.Node(inAudit))
					}
				}, func(t *testing.T, r ownershipRig, p *preceding, serves func()) {
					after(time.Minute)
					r.see(deleted(v1alpha1.RemovalCleanup))
					after(20 * time.Second)
					r.expect(t, "deleted", v1alpha1.ReasonFailed, "would meet table ip nodeproxy before", "shop/a")
					if has, _ := p.state(); !has {
						t.Error("removed before the other proxy serves")
					}
					if reports {
						serves()
						after(30 * time.Second)
					} else {
						after(removalPatience + longestRetry)
					}
					r.expect(t, "after", v1alpha1.ReasonRemoved, "Only table ip nodeproxy was removed", "shop/a")
					if has, _ := p.state(); has {
						t.Error("the table remains")
					}
				})
			})
		}
	}
}

// TestRemovalInAuditLeavesTheTable: without another proxy, nothing else would serve.
func TestRemovalInAuditLeavesTheTable(t *testing.T) {
	relinquishing(t, func(r *ownershipRig, p *preceding) {
		p.table = true
		r.kernel.Plant(combined("a"))
		r.rig.SetRules(r.rig.Node(inAudit))
	}, func(t *testing.T, r ownershipRig, p *preceding, _ func()) {
		after(time.Minute)
		r.see(deleted(v1alpha1.RemovalCleanup))
		after(removalPatience + longestRetry)
		r.expect(t, "after", v1alpha1.ReasonRemoved, "because enforcement is Audit", "shop/a")
		if has, _ := p.state(); !has {
			t.Error("the table is removed")
		}
	})
}

// TestRelinquishOneFamily: what one IP family has removed is reported although another fails.
func TestRelinquishOneFamily(t *testing.T) {
	four, six := &preceding{Fake: dataplanetest.NewFake(), table: true}, &preceding{Fake: dataplanetest.NewFake(), table: true, stuck: errors.New("busy")}
	m := newModal(t)
	m.fanout = dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: four, dataplane.IPv6: six})
	m.options.Serving = func(context.Context) map[dataplane.Family]bool {
		return map[dataplane.Family]bool{dataplane.IPv4: true, dataplane.IPv6: true}
	}
	removed, err := m.relinquishLast(t.Context())
	if removed != "table ip nodeproxy" || !errors.Is(err, six.stuck) || len(m.log.With("Removed what another proxy does not take over")) != 1 {
		t.Errorf("removed %q, %v, log %q", removed, err, m.log.With("Removed"))
	}
	if has, _ := four.state(); has {
		t.Error("the table of IPv4 remains")
	}
	if text := joined(m.remain); text != "table ip nodeproxy" {
		t.Errorf("%q remains, not that of IPv6 alone", text)
	}
	six.stuck = nil
	if removed, err := m.relinquishLast(t.Context()); removed != "table ip nodeproxy, table ip nodeproxy" || err != nil {
		t.Errorf("at the next try: removed %q, %v", removed, err)
	}
}
