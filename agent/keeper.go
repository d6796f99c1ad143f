package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/metrics"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
)

const (
	// keepInterval is how often the last good set is written while the API
	// answers, keepFirst how long after there is a first complete one,
	// keepRetry how long after a failure.
	keepInterval = 10 * time.Minute
	keepFirst    = 10 * time.Second
	keepRetry    = time.Minute
	// keepTick is how often it is looked whether that is due.
	keepTick = 5 * time.Second
	// keepStop is how long the last write may take when the agent stops.
	keepStop = 5 * time.Second
	// diskPatience is how long anybody else waits for the disk.
	diskPatience = 10 * time.Second
)

// errDiskHangs is said of a disk that does not answer.
var errDiskHangs = fmt.Errorf("the disk has not answered within %s: see that the file system of the folder (--state-dir) works", diskPatience)

// setKeeper reads and writes the last good set on disk.
type setKeeper struct {
	file    *checkpoint.File
	here    checkpoint.Identity
	now     func() time.Time
	clock   clock.Clock
	busy    chan struct{} // holds one while a file is read or written
	say     func(problem string)
	metrics *checkpoint.Metrics

	// header is that of the file as it was when the agent started; nil: there
	// was none that can be used.
	header *checkpoint.Header

	mu sync.Mutex // guards what follows: the last write may run late
	// since is when there was first something to write, saved and failed when
	// it was last written, or could not be; zero: never, or not any more.
	since, saved, failed time.Time
	conflict             bool   // as last written
	failure              string // that was last logged
}

// newKeeper returns the keeper of the node's file; nil without a folder.
func (a *Agent) newKeeper() (*setKeeper, error) {
	if a.options.StateDir == "" {
		return nil, nil
	}
	file, err := checkpoint.New(a.options.StateDir, a.options.NodeName)
	if err != nil {
		return nil, err
	}
	k := &setKeeper{file: file, here: a.options.Identity, now: a.options.Clock.Now, clock: a.options.Clock, busy: make(chan struct{}, 1), metrics: a.metrics.Keep}
	k.say = func(problem string) {
		a.log.Info("The last good set on this node's disk cannot be used; it is left as it is until the next one is written over it", "file", file.Path(), "problem", problem)
	}
	return k, nil
}

// within does work with the file, and reports whether it has ended within the
// limit. A disk can hang for ever, and must not take with it who waits. There is
// one such work at a time, so that on a disk that hangs they do not pile up.
func (k *setKeeper) within(limit time.Duration, work func()) bool {
	timer := k.clock.NewTimer(limit)
	defer timer.Stop()
	select {
	case k.busy <- struct{}{}:
	case <-timer.C():
		return false
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { <-k.busy }()
		work()
	}()
	select {
	case <-done:
		return true
	case <-timer.C():
		return false
	}
}

// fromDisk reads something, unless the disk hangs.
func fromDisk[T any](k *setKeeper, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	got := make(chan result, 1) // one that comes late is dropped
	if !k.within(diskPatience, func() {
		value, err := read()
		got <- result{value, err}
	}) {
		var none T
		return none, errDiskHangs
	}
	r := <-got
	return r.value, r.err
}

// look reads the header of the file, at the start.
func (k *setKeeper) look() {
	if k == nil {
		return
	}
	header, err := fromDisk(k, func() (*checkpoint.Header, error) { return k.file.Peek(k.now()) })
	switch {
	case errors.Is(err, checkpoint.ErrNone):
		return
	case err != nil:
		k.metrics.Failures.WithLabelValues("read").Inc()
		k.say(err.Error())
		return
	}
	k.header = header
	k.metrics.Written.Set(metrics.UnixSeconds(header.Written))
}

// conflicted reports whether another proxy was active when the last good set
// was written. After a reboot we may start before it.
func (k *setKeeper) conflicted() bool {
	return k != nil && k.header != nil && k.header.ConflictingProxy
}

// load reads the set as it can be used here.
func (k *setKeeper) load() (*checkpoint.Restorable, error) {
	set, err := fromDisk(k, func() (*checkpoint.Set, error) { return k.file.Read(k.now()) })
	if err != nil {
		return nil, err
	}
	g := &checkpoint.Restorable{Set: set, Rebooted: !set.Same(k.here)}
	for _, o := range g.Services {
		o.Generation = 0 // what the API shows is compared, not taken for the same
	}
	if g.Rebooted {
		g.Set = set.WithoutMembers()
	}
	return g, nil
}

// lackedBy returns the set if it does not hold the names of a first list.
func (k *setKeeper) lackedBy(names int, hash uint64) *checkpoint.Restorable {
	if k == nil || k.header == nil || k.header.Services == names && k.header.NamesHash == hash {
		return nil
	}
	g, err := k.load()
	if err != nil {
		k.say(err.Error())
		return nil
	}
	return g
}

// keepLoop writes the last good set whenever that is due, and once more when the
// agent stops.
func (a *Agent) keepLoop(ctx context.Context) {
	if a.keeper == nil {
		return
	}
	slow := false // that was said
	for {
		if !pause.For(ctx, a.options.Clock, keepTick) {
			a.keepLast()
			return
		}
		if ended := a.keeper.within(keepStop, func() { a.keep(false) }); !ended && !slow {
			a.log.Info("Writing the last good set takes long; going on without waiting for it. See that the disk of the folder works, or choose another one (--state-dir)", "file", a.keeper.file.Path())
			slow = true
		} else if ended {
			slow = false
		}
	}
}

// keepLast writes once more, but does not wait for a disk that hangs.
func (a *Agent) keepLast() {
	if !a.keeper.within(keepStop, func() { a.keep(true) }) {
		a.log.Info("Writing the last good set takes long; stopping without it", "file", a.keeper.file.Path())
	}
}

// keep writes the last good set if that is due, or whenever there is one with
// last. While the API does not answer there is none: what is known grows older.
func (a *Agent) keep(last bool) {
	k := a.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if a.apiError() != "" {
		return
	}
	set := a.store.CompleteSet()
	if set == nil {
		return
	}
	set.Identity, set.ConflictingProxy = k.here, a.otherActive()
	if !k.due(set.Written, set.ConflictingProxy) && !last {
		return
	}
	set.Sort()
	size, err := k.file.Write(set)
	k.note(set, size, err)
	if err == nil {
		a.store.WarnOfDisk("")
		if k.failure != "" {
			a.log.Info("The last good set can be written to this node's disk again", "file", k.file.Path())
		}
		k.failure = ""
		a.log.V(2).Info("Wrote the last good set", "file", k.file.Path(), "services", len(set.Services), "bytes", size)
		return
	}
	a.store.WarnOfDisk(fmt.Sprintf("the last good set cannot be kept on this node's disk, so after a restart without the API server the node would go by an older one or none: %v; see that %s has room and can be written", err, a.options.StateDir))
	if k.failure != err.Error() {
		a.log.Error(err, "Could not keep the last good set on this node's disk; trying again every minute. All else goes on, and the former one stays. See that the folder has room and can be written, or choose another one (--state-dir)", "file", k.file.Path())
	}
	k.failure = err.Error()
}

// otherActive reports whether another proxy is, or has just been.
func (a *Agent) otherActive() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.turn.other != ""
}

// due reports whether the set has to be written. The caller holds mu.
func (k *setKeeper) due(now time.Time, conflict bool) bool {
	if k.since.IsZero() {
		k.since = now
	}
	switch {
	case !k.failed.IsZero():
		return now.Sub(k.failed) >= keepRetry
	case k.saved.IsZero():
		return now.Sub(k.since) >= keepFirst
	case conflict != k.conflict:
		return true
	default:
		return now.Sub(k.saved) >= keepInterval
	}
}

// note takes the outcome of a write. The caller holds mu.
func (k *setKeeper) note(set *checkpoint.Set, size int64, err error) {
	if err != nil {
		k.failed = set.Written
		k.metrics.Failures.WithLabelValues("write").Inc()
		return
	}
	k.saved, k.failed, k.conflict = set.Written, time.Time{}, set.ConflictingProxy
	k.metrics.Written.Set(metrics.UnixSeconds(set.Written))
	k.metrics.Size.Set(float64(size))
}
