package recovery

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
)

const (
	// writeInterval is how often the checkpoint is written while the API answers, firstWrite
	// how long after the first complete state, writeRetry how long after a failure.
	// writeTick is how often that is checked.
	writeInterval = 10 * time.Minute
	firstWrite    = 10 * time.Second
	writeRetry    = time.Minute
	writeTick     = 5 * time.Second
	// patience is how long a write may take before the agent no longer waits for it.
	patience = 5 * time.Second

	// restoreDelay is how long the API may take to answer after the start until the checkpoint is
	// used. restoreTick is how often that is checked again, restoreRetry the pause after a
	// failure.
	restoreDelay = 5 * time.Second
	restoreTick  = time.Second
	restoreRetry = 10 * time.Second
)

// Options are what a Recovery needs.
type Options struct {
	Clock clock.Clock
	Log   logr.Logger
	Disk  *checkpoint.Disk
	Store *desired.Store
	// APIError returns the current error of reading the API; empty: none.
	APIError func() string
	// Conflict reports whether another proxy is active, or has just been.
	Conflict func() bool
	// Restored is called when the state was restored.
	Restored func()
}

// Recovery writes and restores the checkpoint.
type Recovery struct {
	Options

	mu sync.Mutex // guards everything below: the last write may run late
	// since is when there was first something to write, saved and failed when it was last
	// written, or could not be; zero: never, or not since Discard.
	since, saved, failed time.Time
	conflict             bool   // as last written
	failure              string // that was last logged

	observing sync.Mutex // guards used; never held while the disk may hang
	used      bool       // when last observed
}

// New returns a Recovery; nil without a disk.
func New(o Options) *Recovery {
	if o.Disk == nil {
		return nil
	}
	return &Recovery{Options: o}
}

// Write writes the checkpoint whenever that is due, and once more when ctx is done.
func (r *Recovery) Write(ctx context.Context) {
	slow := false
	for pause.For(ctx, r.Clock, writeTick) {
		ended := r.Disk.Within(patience, func() { r.write(false) })
		if !ended && !slow {
			r.Log.Info("Writing the checkpoint takes long; no longer waiting for it", "file", r.Disk.Path())
		}
		slow = !ended
	}
	if !r.Disk.Within(patience, func() { r.write(true) }) {
		r.Log.Info("Writing the checkpoint takes long; stopping without it", "file", r.Disk.Path())
	}
}

// write writes the checkpoint if that is due, or with last whenever there is one. While the
// API does not answer there is none: what is known becomes stale.
func (r *Recovery) write(last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.APIError() != "" {
		return
	}
	set := r.Store.CompleteSet()
	if set == nil {
		return
	}
	set.ConflictingProxy = r.Conflict()
	if !r.due(set.Written, set.ConflictingProxy) && !last {
		return
	}
	size, err := r.Disk.Save(set)
	if err != nil {
		r.failed = set.Written
		r.Store.WarnOfDisk(fmt.Sprintf("the checkpoint cannot be written, so after a restart without the API server the node would use an older one or none: %v; check space and permissions of --state-dir", err))
		if r.failure != err.Error() {
			r.Log.Error(err, "Could not write the checkpoint; retrying every minute, and the former one stays", "file", r.Disk.Path())
		}
		r.failure = err.Error()
		return
	}
	r.saved, r.failed, r.conflict = set.Written, time.Time{}, set.ConflictingProxy
	r.Store.WarnOfDisk("")
	if r.failure != "" {
		r.Log.Info("The checkpoint can be written again", "file", r.Disk.Path())
	}
	r.failure = ""
	r.Log.V(2).Info("Wrote the checkpoint", "file", r.Disk.Path(), "services", len(set.Services), "bytes", size)
}

// due reports whether the checkpoint has to be written. The caller holds mu.
func (r *Recovery) due(now time.Time, conflict bool) bool {
	if r.since.IsZero() {
		r.since = now
	}
	switch {
	case !r.failed.IsZero():
		return now.Sub(r.failed) >= writeRetry
	case r.saved.IsZero():
		return now.Sub(r.since) >= firstWrite
	case conflict != r.conflict:
		return true
	default:
		return now.Sub(r.saved) >= writeInterval
	}
}

// Discard removes the checkpoint. Another is written once there is a complete state again.
func (r *Recovery) Discard() error {
	if r == nil {
		return nil
	}
	if err := r.Disk.Discard(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since, r.saved, r.failed = time.Time{}, time.Time{}, time.Time{}
	return nil
}

// Restore uses the checkpoint if the API has not delivered everything some time after the
// start, for whatever reason. It ends when nothing is missing.
func (r *Recovery) Restore(ctx context.Context) {
	logged := ""
	for wait := restoreDelay; pause.For(ctx, r.Clock, wait); {
		wait = restoreTick
		if !r.Store.Lacking() {
			if r.Store.Ready() {
				return
			}
			continue // not accepted, or to be removed: that may end
		}
		problem := ""
		if err := r.restore(); err != nil {
			problem, wait = err.Error(), restoreRetry // its file system may be mounted late
		}
		if problem != logged && problem != "" {
			r.Log.Info("The API has not answered and there is no usable checkpoint; the rules in the kernel stay, unrepaired, until it answers", "file", r.Disk.Path(), "problem", problem)
		}
		logged = problem
	}
}

// restore restores the desired state from the checkpoint.
func (r *Recovery) restore() error {
	g, err := r.Disk.Load()
	if err != nil {
		return err
	}
	g.Why = r.why()
	used, err := r.Store.Restore(g)
	if err != nil || !used { // unused: the API has answered meanwhile
		return err
	}
	r.Log.Info("The API has not answered since the agent started; using the checkpoint until it does",
		"file", r.Disk.Path(), "written", g.Written.UTC().Format(time.RFC3339), "age", g.Age(r.Clock.Now()).Round(time.Second),
		"services", len(g.Services), "rebooted", g.Rebooted, "why", g.Why)
	r.Restored()
	return nil
}

// why is what the API has not delivered, or why not.
func (r *Recovery) why() string {
	if why := r.APIError(); why != "" {
		return why
	}
	if _, _, gone := r.Store.OwnObject(); gone {
		return "this node has no NodeProxyRules"
	}
	return fmt.Sprintf("no answer within %s", restoreDelay)
}

// Observe shows whether the checkpoint is used. It is called after every event of a watch.
func (r *Recovery) Observe() {
	if r == nil {
		return
	}
	r.observing.Lock()
	defer r.observing.Unlock()
	// Only with the lock: several watches come here at the same time, and an older state
	// must not replace a newer one.
	active := r.Store.InUse().Active()
	r.Disk.Metrics.Used(active)
	if r.used && !active {
		r.Log.Info("The API has answered; the checkpoint is no longer used")
	}
	r.used = active
}
