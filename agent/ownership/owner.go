package ownership

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
)

const (
	// checkPause is the time between checks for another proxy, idlePause the same with
	// Audit or after a removal, when only humans read the result.
	checkPause = time.Second
	idlePause  = 5 * time.Second
	// probePause is the time between probes of the proxies' ports while we should have them
	// ourselves. A kube-proxy that could not open one retries every 5 s.
	probePause = 5 * time.Second
	// orientPatience is how long an agent that starts waits for what the API delivers, before
	// it writes: it may have to remove rules instead.
	orientPatience = 5 * time.Second
	// formerEvidence is used instead of the evidence that an earlier run of the agent reported.
	formerEvidence = "reported before this agent started"
)

// Options are what an Owner needs.
type Options struct {
	Clock clock.Clock
	Log   logr.Logger
	Store *desired.Store
	// Probe probes the ports of other proxies, Spotter detects them in the kernel. Without
	// a Spotter, only ports are probed.
	Probe   ProbeFunc
	Spotter dataplane.Spotter
	// Instance distinguishes the ports of this agent from those of another one.
	Instance string
	// FormerConflict reports whether the checkpoint records another active proxy.
	FormerConflict func() bool
	// Checks counts checks for other proxies.
	Checks prometheus.Counter
	// Changed is called if Facts may have changed, Cleared once rules may be removed, Beside
	// after each check that detects another proxy while the agent does not write.
	Changed, Cleared, Beside func()
}

// Facts are what is known of other proxies.
type Facts struct {
	// Other is the evidence of another proxy, or the last evidence while ownership still waits;
	// empty: none.
	Other string
	// Gone is when it was no longer detected; zero: it is detected. Wait is how long it must stay
	// undetected.
	Gone time.Time
	Wait time.Duration
	// Unanswered: the last probe of the ports got no answer.
	Unanswered bool
	// Leftovers are what other proxies have left on the node, human-readable.
	Leftovers []string
}

// Owner acquires and loses ownership of the node's proxy rules. One goroutine calls Acquire,
// Watch and Ended; the other methods may be called from any.
type Owner struct {
	Options
	started, began  time.Time // of the agent and the current ownership
	waiting         waiting
	ready, switched pause.Wake

	mu    sync.Mutex // guards everything below
	owned bool
	// ctx ends with the ownership; end ends it.
	ctx   context.Context
	end   context.CancelFunc
	facts Facts
	// The errors that were last logged.
	detectError, acquireError string
}

// New returns an Owner that owns nothing.
func New(o Options) *Owner {
	return &Owner{
		Options: o, started: o.Clock.Now(), waiting: waiting{now: o.Clock.Now},
		ready: pause.NewWake(), switched: pause.NewWake(),
	}
}

// Acquire returns true once there is a complete set to apply and no other proxy is active;
// false when ctx is done. Until then nothing may be written, and no port of the proxy open.
func (o *Owner) Acquire(ctx context.Context) bool {
	for {
		ready := o.Store.Ready() && o.oriented()
		// After that: a set is ready only if the stored status is known.
		if !o.waiting.seen && (o.Store.FoundConflict() || o.FormerConflict()) {
			o.waiting.remember()
			o.note(formerEvidence, false)
		}
		evidence, err := o.Detect(ctx, true)
		if ctx.Err() != nil {
			return false
		}
		unknown := o.unanswered(err)
		free := o.waiting.checked(evidence != "", unknown)
		audit, removing := o.Store.Auditing(), o.Store.CurrentRemoval().Requested
		switch {
		case evidence != "" || free:
			o.note(evidence, false)
		default:
			o.note(o.Facts().Other, unknown)
		}
		if evidence != "" && !removing {
			o.Beside()
		}
		if removing && o.oriented() && o.Store.ClearRemoval(evidence, free) {
			o.Cleared()
		}
		if free && ready && !audit && !removing && o.begin(ctx) {
			return true
		}
		// Only a set that is still missing is waited for: later every event of a watch
		// would cause a check.
		wait, complete := checkPause, o.ready
		if ready || !free || audit || removing {
			complete = nil
		}
		if free && (audit || o.Store.CurrentRemoval().Done) {
			wait = idlePause
		}
		o.wait(ctx, wait, complete)
	}
}

// wait waits for as long as limit, or until there is something to do.
func (o *Owner) wait(ctx context.Context, limit time.Duration, complete <-chan struct{}) {
	timer := o.Clock.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-complete:
	case <-o.switched:
	case <-timer.C():
	}
}

// oriented reports whether the API has shown whether rules are to be written or removed. It
// does not wait forever for a kind that cannot be read.
func (o *Owner) oriented() bool {
	return o.Store.Oriented() || o.Clock.Since(o.started) >= orientPatience
}

// Readied ends a wait for the first complete set, if there is one.
func (o *Owner) Readied() {
	if o.Store.Ready() && o.oriented() {
		o.ready.Up()
	}
}

// Switched is called when the settings have changed or a removal begins or ends.
func (o *Owner) Switched() { o.switched.Up() }

// Detect returns the evidence of another proxy; empty: none. With probe it also probes
// the ports. An error means that the ports have not answered.
func (o *Owner) Detect(ctx context.Context, probe bool) (string, error) {
	defer o.Checks.Inc()
	if o.Spotter != nil {
		evidence, err := o.Spotter.OtherProxy(ctx)
		if ctx.Err() == nil && o.isNew(&o.detectError, err) {
			o.Log.Error(err, "Could not detect other proxies in the kernel; only probing their ports")
		}
		if evidence != "" {
			return evidence, nil
		}
	}
	if !probe {
		return "", nil
	}
	return o.Probe(ctx, o.Instance)
}

// isNew notes an error and reports whether it is one that was not logged yet.
func (o *Owner) isNew(logged *string, err error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := wording.OfError(err)
	changed := *logged != text
	*logged = text
	return changed && err != nil
}

// unanswered counts consecutive probes without an answer and reports whether there may be a
// proxy: one that is short of CPU answers late. One that has answered before counts as a
// proxy until its port is closed.
func (o *Owner) unanswered(err error) bool {
	if err == nil {
		o.waiting.silent = 0
		return false
	}
	o.waiting.silent++
	if f := o.Facts(); f.Other != "" && f.Gone.IsZero() || o.waiting.silent < ProbeLimit {
		return true
	}
	if o.waiting.silent == ProbeLimit {
		o.Log.Info("A listener at kube-proxy's port never answers; assuming that it is no proxy", "address", ProxyModeAddress, "probes", ProbeLimit)
	}
	return false
}

// begin begins ownership. It reports false if the canaries of another proxy cannot be
// removed yet: they could not indicate its return.
func (o *Owner) begin(ctx context.Context) bool {
	var leftovers []string
	if o.Spotter != nil {
		var err error
		leftovers, err = o.Spotter.Begin(ctx)
		if o.isNew(&o.acquireError, err) && ctx.Err() == nil {
			o.Log.Error(err, "Could not acquire ownership of the node's proxy rules; retrying every second")
		}
		if err != nil {
			return false
		}
	}
	for _, leftover := range leftovers {
		o.Log.Info("Another proxy has left something on this node", "leftover", leftover)
	}
	o.Store.Forget()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ctx, o.end = context.WithCancel(ctx)
	o.owned, o.facts = true, Facts{Wait: o.facts.Wait, Leftovers: leftovers}
	o.Store.BesideOther(false)
	return true
}

// Watch watches for other proxies until ownership has ended: another proxy is detected,
// enforcement becomes Audit, rules are to be removed, or ctx is done.
func (o *Owner) Watch(ctx context.Context) {
	o.began = o.Clock.Now()
	probed := o.began
	for owned := o.Context(); owned.Err() == nil; {
		audit := o.Store.Auditing()
		if audit {
			o.Log.Info("Enforcement is Audit; closing the proxy's ports and writing nothing")
		}
		if audit || o.Store.CurrentRemoval().Requested {
			o.lose("")
			break
		}
		now := o.Clock.Now()
		probe := now.Sub(probed) >= probePause
		if probe {
			probed = now
		}
		o.Check(owned, probe)
		o.wait(owned, checkPause, nil)
	}
	if ctx.Err() != nil {
		o.lose("")
	}
}

// Ended is called after Watch, once the proxy's ports are closed.
func (o *Owner) Ended() {
	if o.Spotter != nil {
		o.Spotter.End()
	}
	o.waiting.ended(o.Facts().Other != "", o.Clock.Now().Sub(o.began))
}

// Check checks for another proxy, ends ownership if there is one, and reports whether the
// agent may write. It is called before each write, so that the agent does not fight a
// kube-proxy that has just started.
func (o *Owner) Check(ctx context.Context, probe bool) bool {
	evidence, _ := o.Detect(ctx, probe) // what does not answer has our port, which is logged
	if ctx.Err() == nil && evidence != "" {
		o.lose(evidence)
	}
	return o.MayWrite()
}

// lose ends ownership because another proxy was detected or, without evidence, because the agent
// must stop writing.
func (o *Owner) lose(evidence string) {
	o.mu.Lock()
	ended := o.owned
	if ended {
		o.owned, o.facts.Other, o.facts.Leftovers = false, evidence, nil
		o.end()
		o.Store.BesideOther(evidence != "")
	}
	o.mu.Unlock()
	if ended && evidence != "" {
		o.Log.Info("Another proxy has started on this node; closing the proxy's ports and writing nothing until it stops", "evidence", evidence)
	}
	o.Changed()
}

// MayWrite reports whether the agent may apply a complete set now.
func (o *Owner) MayWrite() bool {
	o.mu.Lock()
	owned := o.owned
	o.mu.Unlock()
	return owned && o.Store.Ready() && !o.Store.Auditing() && !o.Store.CurrentRemoval().Requested
}

// Context ends when the current ownership does.
func (o *Owner) Context() context.Context {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ctx
}

// Facts returns what is known of other proxies.
func (o *Owner) Facts() Facts {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.facts
}

// note notes the evidence of another proxy, empty for none, and whether a probe waits for an answer.
func (o *Owner) note(evidence string, unanswered bool) {
	o.mu.Lock()
	former := o.facts
	o.facts.Other, o.facts.Unanswered = evidence, unanswered
	o.facts.Gone, o.facts.Wait = o.waiting.since, o.waiting.need
	if evidence == "" {
		o.facts.Gone = time.Time{}
	}
	now := o.facts
	o.Store.BesideOther(evidence != "")
	o.mu.Unlock()
	if former.Other == now.Other && former.Gone.Equal(now.Gone) && former.Unanswered == now.Unanswered {
		return
	}
	audit := o.Store.Auditing()
	switch {
	case former.Other == evidence:
	case evidence != "" && audit:
		o.Log.Info("Another proxy is active on this node", "evidence", evidence)
	case evidence != "":
		o.Log.Info("Another proxy is active on this node; writing nothing until it stops", "evidence", evidence)
	case audit:
		o.Log.Info("No other proxy detected; with enforcement Audit the rules of this node are not updated")
	default:
		o.Log.Info("No other proxy detected; resuming")
	}
	if unanswered && !former.Unanswered {
		o.Log.Info("A listener at kube-proxy's port has not answered yet; writing nothing", "address", ProxyModeAddress, "probes", ProbeLimit)
	}
	o.Changed()
}
