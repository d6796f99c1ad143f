package conntrack

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// minPause is the least time between two passes. A pass also takes at most
	// a fifth of the time, so that reading a table of millions of entries does
	// not become the node's main work.
	minPause    = time.Second
	pauseFactor = 4
	// shortestRetry and longestRetry bound the pauses after failed passes.
	shortestRetry = 250 * time.Millisecond
	longestRetry  = 30 * time.Second
	// maxExamples bounds what is logged of one pass.
	maxExamples = 5
	// maxSilent bounds how many connections are looked at again.
	maxSilent = 1 << 16
)

// Options are what a Cleaner needs.
type Options struct {
	Family dataplane.Family
	// Protocol is UDP or TCP.
	Protocol v1alpha1.Protocol
	Table    Table
	Clock    clock.Clock
	Log      logr.Logger
	// May reports whether flows may be removed now. It is asked before each one.
	// Nil: always.
	May func() bool
	// Report is called after every pass. Nil: nobody is told.
	Report func(dataplane.Family, Pass)
}

// Pass is what one comparison of flows to the rules did.
type Pass struct {
	// Removed counts the flows that were removed.
	Removed map[Reason]int
	// Read is the number of flows that were looked at.
	Read int
	// Took is how long it took.
	Took time.Duration
	// Err is why it was not complete. It is tried again.
	Err error
}

// Cleaner removes the stale flows of one IP family and protocol whenever rules
// have changed.
type Cleaner struct {
	options Options
	log     logr.Logger
	wake    chan struct{}

	mu    sync.Mutex // guards state
	state *state

	// Only Run uses these.
	failures int       // passes in a row
	next     time.Time // the earliest time of the next pass
	failure  string    // that was last logged
	// silent are the connections that the last pass would have removed, had it
	// known for how long nobody has answered them.
	silent map[Flow]struct{}
}

// New returns a Cleaner that does nothing until it runs.
func New(options Options) *Cleaner {
	return &Cleaner{
		options: options,
		log:     options.Log.WithValues("ipFamily", options.Family, "protocol", options.Protocol),
		wake:    make(chan struct{}, 1),
		state:   newState(options.Protocol),
	}
}

// Committed says that the kernel has r, but for what result says. Flows that
// contradict that are removed soon, by Run. It must not be called before the
// rules are in the kernel: a flow that is removed earlier is made again by the
// old ones. It reads r only during the call, and keeps Services.
func (c *Cleaner) Committed(r *dataplane.Ruleset, result dataplane.Result) {
	c.mu.Lock()
	c.state.commit(r, result)
	waiting := !c.state.work.empty()
	c.mu.Unlock()
	if !waiting {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default: // it is awake
	}
}

// Run removes stale flows until ctx is done.
func (c *Cleaner) Run(ctx context.Context) {
	for ctx.Err() == nil {
		wait, timed := c.turn(ctx)
		if !timed {
			select {
			case <-ctx.Done():
			case <-c.wake:
			}
			continue
		}
		timer := c.options.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// turn makes a pass if one is due. It returns how long to wait for the next,
// or false if there is nothing to wait for but news.
func (c *Cleaner) turn(ctx context.Context) (time.Duration, bool) {
	c.mu.Lock()
	waiting := !c.state.work.empty()
	c.mu.Unlock()
	if !waiting {
		return 0, false
	}
	if wait := c.next.Sub(c.options.Clock.Now()); wait > 0 {
		return wait, true
	}
	if !c.may() {
		return longestRetry, true
	}
	pass := c.pass(ctx)
	if ctx.Err() != nil {
		return 0, false
	}
	if errors.Is(pass.Err, errMayNot) {
		c.report(pass)
		return longestRetry, true
	}
	c.tell(pass)
	pause := max(minPause, pauseFactor*pass.Took)
	if pass.Err != nil {
		pause = max(min(shortestRetry<<min(c.failures, 10), longestRetry), pauseFactor*pass.Took)
		c.failures++
	} else {
		c.failures = 0
	}
	c.next = c.options.Clock.Now().Add(pause)
	return pause, true
}

// errMayNot is why a pass ends when flows may not be removed any more.
var errMayNot = errors.New("flows may not be removed any more")

func (c *Cleaner) may() bool { return c.options.May == nil || c.options.May() }

// pass compares flows to the rules once.
func (c *Cleaner) pass(ctx context.Context) Pass {
	start := c.options.Clock.Now()
	c.mu.Lock()
	plan, work := c.state.take()
	node := c.state.node
	c.mu.Unlock()
	out := Pass{Removed: map[Reason]int{}}
	silent := map[Flow]struct{}{}
	out.Err = c.compare(ctx, plan, &node, &out, silent)
	c.silent = silent
	if out.Err != nil || len(silent) > 0 {
		c.mu.Lock()
		c.state.putBack(work)
		c.mu.Unlock()
	}
	out.Took = c.options.Clock.Since(start)
	return out
}

// compare removes what contradicts the plan, and notes in silent what only the
// next pass can be sure of.
func (c *Cleaner) compare(ctx context.Context, plan *plan, node *dataplane.Node, out *Pass, silent map[Flow]struct{}) error {
	if len(plan.filters) == 0 {
		return nil
	}
	if plan.usesNodePorts() {
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
		if reason == "" {
			return
		}
		if !c.sure(f, reason) {
			if len(silent) < maxSilent {
				silent[f] = struct{}{}
			}
			return
		}
		if !c.may() {
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
			return
		}
		if !removed {
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

// sure reports whether a stale flow may be removed by now. A connection that has
// just begun may be answered by an endpoint that is about to go, at this very
// moment; what had no answer in the pass before will have none. To an address that
// is not translated nobody answers.
func (c *Cleaner) sure(f Flow, reason Reason) bool {
	if f.Protocol != v1alpha1.ProtocolTCP || reason == NotTranslated {
		return true
	}
	_, found := c.silent[f]
	return found
}

func (c *Cleaner) report(pass Pass) {
	if c.options.Report != nil {
		c.options.Report(c.options.Family, pass)
	}
}

// tell logs and reports a pass.
func (c *Cleaner) tell(pass Pass) {
	c.report(pass)
	total := 0
	for _, n := range pass.Removed {
		total += n
	}
	if total > 0 {
		c.log.V(1).Info("Removed stale flows", "count", total, "reasons", pass.Removed, "read", pass.Read, "duration", pass.Took)
	} else {
		c.log.V(4).Info("No stale flows", "read", pass.Read, "duration", pass.Took)
	}
	failure := ""
	if pass.Err != nil {
		failure = pass.Err.Error()
	}
	switch {
	case failure != "" && c.failure == "":
		c.log.Error(pass.Err, "Could not remove all stale flows: clients may go on sending to endpoints that are gone, or to nobody. Trying again with growing pauses; see that the kernel has nf_conntrack_netlink and that the agent has CAP_NET_ADMIN")
	case failure == "" && c.failure != "":
		c.log.Info("Removing stale flows works again")
	}
	c.failure = failure
}
