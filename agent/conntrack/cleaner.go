package conntrack

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// minPause is the least time between two passes. A pass also takes at most a fifth of the
	// time, so that a table of millions of entries does not occupy the node.
	minPause    = time.Second
	pauseFactor = 4
	// While passes find nothing stale, those for TCP take at most a 500th of the time, or quietPause
	// passes: the kernel walks its whole hash table for each. Unlike a datagram, a packet that
	// opens a TCP connection is sent again. A new destination does not wait: clients that were
	// earlier do.
	quietFactor = 500
	quietPause  = 5 * time.Second
	// shortestRetry and longestRetry bound the pauses after failed passes.
	shortestRetry = 250 * time.Millisecond
	longestRetry  = 30 * time.Second
	// maxExamples bounds how many flows of one pass are logged.
	maxExamples = 5
	// maxSilent bounds how many connections are checked again.
	maxSilent = 1 << 16
)

// Options configure a Cleaner. All are required.
type Options struct {
	Family dataplane.Family
	// Protocol is UDP or TCP.
	Protocol v1alpha1.Protocol
	Table    Table
	Clock    clock.Clock
	Log      logr.Logger
	// May reports whether flows may be removed now. It is called before each removal.
	May func() bool
	// Report is called after every pass.
	Report func(dataplane.Family, Pass)
}

// Pass is the result of one comparison of flows to the rules.
type Pass struct {
	// Removed counts the removed flows.
	Removed map[Reason]int
	// Read is the number of flows that were checked.
	Read int
	// Took is how long it took.
	Took time.Duration
	// Err is why it was incomplete. It is retried.
	Err error
}

// Cleaner removes the stale flows of one IP family and protocol when rules have changed.
type Cleaner struct {
	options Options
	log     logr.Logger
	wake    pause.Wake

	mu    sync.Mutex // guards state
	state *state

	// Only Run uses these.
	failures int       // passes in a row
	next     time.Time // the earliest time of the next pass
	quiet    time.Time // the same, if no destination is new
	failing  bool      // the last pass failed, which was logged
	// silent are the connections that the last pass would have removed if it had known how long
	// they have been without an answer.
	silent sets.Set[Flow]
}

// New returns a Cleaner that does nothing until it runs.
func New(options Options) *Cleaner {
	return &Cleaner{
		options: options,
		log:     options.Log.WithValues("ipFamily", options.Family, "protocol", options.Protocol),
		wake:    pause.NewWake(),
		state:   newState(options.Protocol),
	}
}

// Applying records that r is about to be applied: until Committed, it is unknown what the kernel does with
// flows of what r changes. It reads r only during the call, but retains Services.
func (c *Cleaner) Applying(r *dataplane.Ruleset) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.begin(r)
}

// Committed records that r was applied with a result. Run soon removes flows that contradict it.
// Call it only when the kernel has the rules: old rules would recreate a flow that is removed
// earlier. It reads r only during the call, but retains Services.
func (c *Cleaner) Committed(r *dataplane.Ruleset, result dataplane.Result) {
	c.mu.Lock()
	c.state.commit(r, result)
	c.mu.Unlock()
	if c.pending() {
		c.wake.Up()
	}
}

// pending reports whether there is work that need not wait for Committed.
func (c *Cleaner) pending() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.state.work.empty() && !c.state.busy()
}

// Run removes stale flows until ctx is done.
func (c *Cleaner) Run(ctx context.Context) {
	for ctx.Err() == nil {
		c.wake.For(ctx, c.options.Clock, c.step(ctx))
	}
}

// due is the time of the next pass.
func (c *Cleaner) due() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.work.opened {
		return c.next
	}
	return c.quiet
}

// step makes a pass if one is due, and returns how long to wait for the next one.
func (c *Cleaner) step(ctx context.Context) time.Duration {
	if !c.pending() {
		return pause.Forever
	}
	if wait := c.due().Sub(c.options.Clock.Now()); wait > 0 {
		return wait
	}
	if !c.options.May() {
		return longestRetry
	}
	pass := c.pass(ctx)
	if ctx.Err() != nil {
		return pause.Forever
	}
	c.options.Report(c.options.Family, pass)
	if errors.Is(pass.Err, errMayNot) {
		return longestRetry
	}
	c.logPass(pass)
	wait, quiet := minPause, time.Duration(0)
	if pass.Err != nil {
		wait = min(shortestRetry<<min(c.failures, 10), longestRetry)
		c.failures++
	} else {
		c.failures = 0
		if c.options.Protocol == v1alpha1.ProtocolTCP && len(pass.Removed)+len(c.silent) == 0 {
			quiet = min(quietFactor*pass.Took, quietPause)
		}
	}
	wait = max(wait, pauseFactor*pass.Took)
	now := c.options.Clock.Now()
	c.next, c.quiet = now.Add(wait), now.Add(max(wait, quiet))
	return c.due().Sub(now)
}

// errMayNot ends a pass.
var errMayNot = errors.New("removing flows is no longer allowed")

// pass compares flows to the rules once.
func (c *Cleaner) pass(ctx context.Context) Pass {
	start := c.options.Clock.Now()
	c.mu.Lock()
	plan := c.state.take()
	node := c.state.node
	c.mu.Unlock()
	out := Pass{Removed: map[Reason]int{}}
	silent := sets.Set[Flow]{}
	out.Err = c.compare(ctx, plan, &node, &out, silent)
	c.silent = silent
	c.mu.Lock()
	if out.Err != nil || len(silent) > 0 || c.state.applies != plan.applies {
		c.state.putBack(plan.work)
	}
	c.mu.Unlock()
	out.Took = c.options.Clock.Since(start)
	return out
}

// current returns the plan for the same work, newer if an Apply has begun meanwhile.
func (c *Cleaner) current(p *plan) *plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.applies == p.applies {
		return p
	}
	next := c.state.planFor(p.work)
	next.answers = p.answers
	next.unknown = next.unknown || next.nodePorts && next.answers == nil // where they answer was not read
	return next
}

// compare removes what contradicts the plan, and adds to silent what only the next pass can
// decide.
func (c *Cleaner) compare(ctx context.Context, plan *plan, node *dataplane.Node, out *Pass, silent sets.Set[Flow]) error {
	if len(plan.filters) == 0 {
		return nil
	}
	if plan.nodePorts {
		local, err := c.options.Table.LocalAddresses(c.options.Family)
		if err != nil {
			return err
		}
		if plan.answers, err = nodePortsAnswer(c.options.Family, node, local); err != nil {
			return err
		}
	}
	var firstFailure error
	failed, logged, stopped := 0, 0, false
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	walk := c.options.Table.Walk(ctx, c.options.Family, c.options.Protocol, plan.filters, func(f Flow) {
		if stopped {
			return // the walk is about to end
		}
		out.Read++
		reason := plan.judge(f)
		if reason != "" { // it may be one to what the kernel has had for a moment only
			plan = c.current(plan)
			reason = plan.judge(f)
		}
		switch {
		case reason == "":
			return
		case !c.sure(f, reason):
			if len(silent) < maxSilent {
				silent.Insert(f)
			}
			return
		case !c.options.May():
			stopped = true
			stop()
			return
		}
		removed, err := c.options.Table.Delete(f)
		if err != nil {
			failed++
			if firstFailure == nil {
				firstFailure = err
			}
		}
		if err != nil || !removed {
			return
		}
		out.Removed[reason]++
		if logged++; logged <= maxExamples {
			c.log.V(2).Info("Removed a stale flow", "reason", reason, "flow", f.String())
		}
	})
	if stopped {
		return errMayNot
	}
	if failed > 1 {
		firstFailure = fmt.Errorf("%w (and %d more)", firstFailure, failed-1)
	}
	return errors.Join(walk, firstFailure)
}

// sure reports whether a stale flow may be removed now. An endpoint that is about to end may
// just be answering a new connection; one without an answer in two passes hardly gets one. An
// address that is not translated never answers.
func (c *Cleaner) sure(f Flow, reason Reason) bool {
	return f.Protocol != v1alpha1.ProtocolTCP || reason == NotTranslated || c.silent.Has(f)
}

// logPass logs a pass, and failures once.
func (c *Cleaner) logPass(pass Pass) {
	total := 0
	for _, n := range pass.Removed {
		total += n
	}
	if total > 0 {
		c.log.V(1).Info("Removed stale flows", "count", total, "reasons", pass.Removed, "read", pass.Read, "duration", pass.Took)
	} else {
		c.log.V(4).Info("No stale flows", "read", pass.Read, "duration", pass.Took)
	}
	failing := pass.Err != nil
	switch {
	case failing && !c.failing:
		c.log.Error(pass.Err, "Could not remove all stale flows; retrying with growing pauses")
	case !failing && c.failing:
		c.log.Info("Removing stale flows works again")
	}
	c.failing = failing
}
