package desired

import (
	"cmp"
	"fmt"
	"maps"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ledger is the one record of what still has to be written to the kernel, and since when. A
// change is dirty until a sync combines it, or deferred if it is costly; then it is dirty in the
// families that it changes, until an Apply has succeeded.
type ledger struct {
	clock clock.PassiveClock
	// pendingSync: a change has arrived that a sync must apply; see TakePending.
	pendingSync bool
	// dirty names Services to combine again. True: to program again even if the outcome is
	// the same.
	dirty map[dataplane.ServiceName]bool
	// deferred are costly changes that wait until they are dirty again. Chosen is what had
	// come when the last batch was chosen.
	deferred map[dataplane.ServiceName]deferral
	chosen   Applied
	// taken are the costly changes that the current sync writes; left: a part of some is left,
	// which waits again.
	taken map[dataplane.ServiceName]deferral
	left  bool
	// moved are the Services between which claims have moved since they were combined.
	moved map[dataplane.ServiceName]map[dataplane.ServiceName]struct{}
	// served is the number of the last costly change that each namespace had written, servings that
	// of the last one of all.
	served   map[string]int
	servings int
	// families are the changes of each IP family.
	families map[dataplane.Family]*pending
	metrics  changeLog
}

// deferralNoted is after how long the status reports that costly changes wait.
const deferralNoted = 10 * time.Second

// deferral is a costly change that waits.
type deferral struct {
	force bool // see ledger.dirty
	since time.Time
	// before is what is applied while it waits, if nothing waits that came before it.
	before Applied
	// programmed is, by family, what the kernel had of the Service before a part of the change was
	// written.
	programmed map[dataplane.Family]*dataplane.Service
}

// need is what the next Apply must do besides writing what is dirty; a greater one includes a lesser.
type need int

const (
	nothing  need = iota
	repair        // what another program has changed, as the last comparison has found it
	fullPass      // compare everything
)

// pending is what the next Apply of a family must do.
type pending struct {
	dirty   map[dataplane.ServiceName]struct{}
	need    need
	recheck bool
	// retry: a family that the node could not program is tried again.
	retry bool
	// tryAll: all rejected Services are tried again, as the cause may be gone.
	tryAll   bool
	rejected retries
	// isolated: the last Apply found out which Services the kernel rejects, which takes long.
	isolated bool
	// pendingSince is when the oldest change came that waits for takeBatch; applyingSince that
	// of those that it has taken and no Apply has brought to the kernel. Zero: none.
	pendingSince, applyingSince time.Time
	// triggers are the times of changes of endpoints that the kernel does not have yet.
	triggers stages[[]time.Time]
}

func newLedger(c clock.PassiveClock, families []dataplane.Family) *ledger {
	l := &ledger{
		clock:    c,
		dirty:    map[dataplane.ServiceName]bool{},
		deferred: map[dataplane.ServiceName]deferral{},
		moved:    map[dataplane.ServiceName]map[dataplane.ServiceName]struct{}{},
		served:   map[string]int{},
		families: map[dataplane.Family]*pending{},
		metrics:  changeLog{since: c.Now(), endpoints: newStages[struct{}](), services: newStages[struct{}]()},
	}
	for _, family := range families {
		l.families[family] = &pending{dirty: map[dataplane.ServiceName]struct{}{}, need: fullPass, triggers: newStages[[]time.Time]()}
	}
	return l
}

// mark makes a Service dirty.
func (l *ledger) mark(name dataplane.ServiceName, force bool) {
	l.dirty[name] = l.dirty[name] || force
	l.pend()
}

// markMoved makes the Services dirty that a change of a Service's claims concerns, and notes
// between which claims have moved.
func (l *ledger) markMoved(e *entry, concerned []*entry) {
	add := func(a, b dataplane.ServiceName) {
		if l.moved[a] == nil {
			l.moved[a] = map[dataplane.ServiceName]struct{}{}
		}
		l.moved[a][b] = struct{}{}
	}
	for _, o := range concerned {
		l.mark(o.name, false)
		add(e.name, o.name)
		add(o.name, e.name)
	}
}

// combined notes that the dirty Services are combined.
func (l *ledger) combined() {
	for name := range l.dirty {
		for other := range l.moved[name] {
			delete(l.moved[other], name)
		}
		delete(l.moved, name)
	}
	// A new map: one that has been large once stays slow.
	l.dirty = map[dataplane.ServiceName]bool{}
}

// markFull requests a full pass of every family, which also tries rejected Services.
func (l *ledger) markFull() {
	for _, p := range l.families {
		p.need, p.tryAll = fullPass, true
	}
	l.pend()
}

// pend notes that something waits to be applied.
func (l *ledger) pend() {
	l.pendingSync = true
	for _, p := range l.families {
		p.wait(l.clock.Now())
	}
}

// wait notes that something waits for the next Apply.
func (p *pending) wait(now time.Time) {
	if p.pendingSince.IsZero() {
		p.pendingSince = now
	}
}

// waitAnew has everything that waits wait from now on.
func (l *ledger) waitAnew() {
	now := l.clock.Now()
	for _, p := range l.families {
		if !p.pendingSince.IsZero() {
			p.pendingSince = now
		}
		if !p.applyingSince.IsZero() {
			p.applyingSince = now
		}
	}
}

// oldest is when the oldest change came that the kernel lacks; zero: none.
func (p *pending) oldest() time.Time { return cmp.Or(p.applyingSince, p.pendingSince) }

// due reports whether an Apply is needed.
func (p *pending) due(now time.Time) bool {
	return p.need != nothing || p.recheck || len(p.dirty) > 0 || p.rejected.due(now)
}

// taken notes that a batch was taken: what is marked from now on is for the next one.
func (p *pending) taken() { p.need, p.recheck, p.retry, p.tryAll = nothing, false, false, false }

// written notes that an Apply, or a comparison, has succeeded.
func (p *pending) written() {
	p.applyingSince = time.Time{}
	p.dirty = map[dataplane.ServiceName]struct{}{}
}

// take returns what a batch consists of, given what has come: with the oldest deferred change,
// what preceded that.
func (l *ledger) take(newest Applied) (batch Applied, came bool) {
	l.takeMetrics()
	batch = newest
	if came = len(l.dirty) > 0; came { // since the batch was chosen; it is for the next one
		batch = l.chosen
	} else {
		l.chosen = batch
	}
	return l.reached(batch), came
}

// reached is what is applied, in the mode of a batch, once all of that is but what is deferred.
func (l *ledger) reached(batch Applied) Applied {
	var since time.Time
	mode := batch.Mode
	for _, change := range l.deferred {
		if since.IsZero() || change.since.Before(since) {
			since, batch = change.since, change.before
		}
	}
	batch.Mode = mode
	return batch
}

// leave notes that Services of a batch are unfinished, by whatever was applied before: what is left of
// their changes is deferred, even of those that were not deferred before.
func (l *ledger) leave(unfinished, batch map[dataplane.ServiceName]struct{}, before Applied) {
	for name := range unfinished {
		if _, dirty := batch[name]; !dirty {
			continue // a rejected Service that has not changed: its retry is due
		}
		change, taken := l.taken[name]
		if !taken {
			change = deferral{since: l.clock.Now(), before: before}
		}
		change.force = true // it is combined already
		l.deferred[name] = change
		l.left = true
		l.metrics.endpoints.putBack(name, func(v, _ struct{}) struct{} { return v })
		l.metrics.services.putBack(name, func(v, _ struct{}) struct{} { return v })
		for _, p := range l.families {
			p.triggers.putBack(name, joinTriggers)
		}
	}
}

// noteChange notes a new state of a Service; a nil former or object means none.
func (l *ledger) noteChange(name dataplane.ServiceName, former, object *v1alpha1.ServiceProxyRules) {
	l.metrics.note(name, former, object)
	if object == nil {
		for _, p := range l.families {
			delete(p.triggers.waiting, name) // nothing is programmed anymore
		}
		return
	}
	trigger := triggerOf(object)
	if trigger.Before(l.metrics.since) || former != nil && !trigger.After(triggerOf(former)) {
		return
	}
	for _, p := range l.families {
		if waiting := p.triggers.waiting; len(waiting[name]) < maxTriggers {
			waiting[name] = append(waiting[name], trigger)
		}
	}
}

// takeMetrics marks all changes that are combined as being applied.
func (l *ledger) takeMetrics() {
	waits := func(name dataplane.ServiceName) bool {
		_, deferred := l.deferred[name]
		_, dirty := l.dirty[name]
		return deferred || dirty
	}
	same := func(_, v struct{}) struct{} { return v }
	l.metrics.endpoints.take(waits, same)
	l.metrics.services.take(waits, same)
	for _, p := range l.families {
		p.triggers.take(waits, joinTriggers)
	}
}

func joinTriggers(former, list []time.Time) []time.Time {
	list = append(former, list...)
	return list[:min(len(list), maxTriggers)]
}

// warnings reports that a costly change has waited for longer than deferralNoted.
func (l *ledger) warnings() []string {
	now := l.clock.Now()
	if !some(maps.Values(l.deferred), func(change deferral) bool { return now.Sub(change.since) > deferralNoted }) {
		return nil
	}
	return []string{fmt.Sprintf("changes of large Services have been deferred for more than %s", deferralNoted)}
}
