package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// gatherPause is the time from a first sign of a change by others until it is
	// looked at: who flushes one table is about to flush another.
	gatherPause = 25 * time.Millisecond
	// restPerLook bounds what looks cost where one after the other finds nothing:
	// after cleanLooks of them in a row, with less than cleanSpan between two, the
	// next on mere suspicion waits for so many seconds as the last took. Where
	// something is gone for sure it waits for as long as the last took, so that
	// who adds and removes rules all the time leaves half of a processor alone.
	restPerLook = 20
	cleanLooks  = 3
	cleanSpan   = time.Minute
	// lookAgainPause is the time until a look that could not be taken is tried
	// again.
	lookAgainPause = time.Second

	// Repairs are in a row if less than driftQuiet lies between them. The first
	// repairsAtOnce of a row are made at once, the next waits for
	// shortestDriftPause after the last, and each further one twice as long, up to
	// longestDriftPause.
	driftQuiet         = 5 * time.Minute
	repairsAtOnce      = 2
	shortestDriftPause = time.Second
	longestDriftPause  = 30 * time.Second
	// A row of driftedRepairs that lasts for driftedSpan sets Drifted. One reload
	// of a firewall may undo rules several times, but not for as long.
	driftedRepairs = 3
	driftedSpan    = 10 * time.Second
	// examplesPerRepair bounds what one repair may tell of, so that it does not
	// push out all others.
	examplesPerRepair = 3
)

// drift knows what others have changed of what we wrote, and when to mend it.
// Its methods may be called from any goroutine.
type drift struct {
	clock clock.PassiveClock

	mu       sync.Mutex // guards everything below
	families map[dataplane.Family]*familyDrift
	repairs  int64
	last     time.Time // of the last repair
	examples []string  // the newest first
}

// familyDrift is what others have changed of one IP family.
type familyDrift struct {
	due bool   // a look is
	by  string // who has given the last sign, for people
	// clean counts the looks in a row that found nothing; cleanEnd is when the
	// last one ended, which took cleanTook.
	clean     int
	cleanEnd  time.Time
	cleanTook time.Duration
	// found is what others have changed and no Apply has mended yet.
	found *dataplane.Difference
	// The row of repairs that goes on.
	row              int
	rowStart, rowEnd time.Time
	message          string // of Drifted
}

func newDrift(c clock.PassiveClock, families []dataplane.Family) *drift {
	d := &drift{clock: c, families: map[dataplane.Family]*familyDrift{}}
	for _, family := range families {
		d.families[family] = &familyDrift{}
	}
	return d
}

// noticed takes a sign that others have changed something, and returns when to
// look.
func (d *drift) noticed(family dataplane.Family, c dataplane.Change) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, now := d.families[family], d.clock.Now()
	f.due = true
	if c.By != "" {
		f.by = c.By
	}
	at := latest(now.Add(gatherPause), f.rested(c.Sure))
	if f.found != nil { // what there is to see is known
		at = latest(at, f.nextRepair(now))
	}
	return at
}

// takeLooks returns the families that a look is due at.
func (d *drift) takeLooks() []dataplane.Family {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []dataplane.Family
	for family, f := range d.families {
		if f.due {
			out = append(out, family)
		}
		f.due = false
	}
	return out
}

// lookAgain asks for another look at a family.
func (d *drift) lookAgain(family dataplane.Family) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.families[family].due = true
}

// compared takes what a comparison has found that has ended now and took so long.
// It returns the families that others have changed, and when each may be mended:
// now at the earliest.
func (d *drift) compared(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Difference], now time.Time, took time.Duration) map[dataplane.Family]time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	drifted := map[dataplane.Family]time.Time{}
	for family, outcome := range outcomes {
		f := d.families[family]
		switch {
		case outcome.Err != nil:
		case outcome.Value.Drifted:
			f.found, f.clean = &outcome.Value, 0
			drifted[family] = f.nextRepair(now)
		case outcome.Value.Count == 0:
			f.found, f.by = nil, ""
			if now.Sub(f.cleanEnd) >= cleanSpan+restPerLook*f.cleanTook {
				f.clean = 0
			}
			f.clean, f.cleanEnd, f.cleanTook = f.clean+1, now, took
		}
	}
	return drifted
}

// rested is when another look may be worth its cost; zero: at any time.
func (f *familyDrift) rested(sure bool) time.Time {
	switch {
	case f.clean < cleanLooks:
		return time.Time{}
	case sure:
		return f.cleanEnd.Add(f.cleanTook)
	default:
		return f.cleanEnd.Add(restPerLook * f.cleanTook)
	}
}

// synced takes the outcomes of writes and returns the families that have been
// repaired by them. The first complete set, after a start or after another proxy,
// repairs nothing: what it found was nobody's doing against us.
func (d *drift) synced(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result], first bool) []dataplane.Family {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []dataplane.Family
	for family, outcome := range outcomes {
		if outcome.Err != nil || outcome.Value.Kind != v1alpha1.SyncFull {
			continue
		}
		f := d.families[family]
		found := f.found
		if found == nil && outcome.Value.Repaired.Count > 0 {
			found = &outcome.Value.Repaired
		}
		f.found = nil
		if found != nil && !first {
			d.repaired(family, f, found)
			out = append(out, family)
		}
	}
	return out
}

// repaired counts a repair. The caller holds mu.
func (d *drift) repaired(family dataplane.Family, f *familyDrift, found *dataplane.Difference) {
	now := d.clock.Now()
	d.repairs, d.last = d.repairs+1, now
	by := ""
	if f.by != "" {
		by = " (changed by " + f.by + ")"
	}
	var told []string
	for _, e := range found.Examples[:min(len(found.Examples), examplesPerRepair)] {
		told = append(told, string(family)+": "+e+by)
	}
	d.examples = append(told, d.examples...)
	d.examples = d.examples[:min(len(d.examples), dataplane.MaxExamples)]
	if f.row == 0 || now.Sub(f.rowEnd) >= driftQuiet {
		f.row, f.rowStart, f.message = 0, now, ""
	}
	f.row, f.rowEnd = f.row+1, now
	f.by = ""
	if f.drifted(now) {
		f.say(family, told)
	}
}

// say words the message of Drifted: anew each time the repairs have doubled, so
// that the status is not written at each of them.
func (f *familyDrift) say(family dataplane.Family, told []string) {
	times := driftedRepairs
	for times*2 <= f.row {
		times *= 2
	}
	if f.message != "" && times != f.row {
		return
	}
	last := ""
	if len(told) > 0 {
		last = "; last: " + told[0]
	}
	f.message = fmt.Sprintf("somebody else undoes nodeproxy's %s rules again and again: repaired at least %d times since %s%s; repairs go on with pauses of up to %s, meanwhile Services may fail on this node; find what flushes or restores iptables rules, or virtual servers of mode IPVS, there (a firewall manager, a script, another proxy; \"nft monitor\" names programs of the nf_tables variant) and stop it",
		family, times, f.rowStart.UTC().Format(time.RFC3339), last, longestDriftPause)
}

// nextRepair is when a change that others have made may be mended.
func (f *familyDrift) nextRepair(now time.Time) time.Time {
	if f.row < repairsAtOnce || now.Sub(f.rowEnd) >= driftQuiet {
		return now
	}
	pause := shortestDriftPause
	for range f.row - repairsAtOnce {
		if pause >= longestDriftPause {
			break
		}
		pause *= 2
	}
	return latest(now, f.rowEnd.Add(min(pause, longestDriftPause)))
}

// drifted reports whether somebody keeps undoing the family's rules.
func (f *familyDrift) drifted(now time.Time) bool {
	return f.row >= driftedRepairs && f.rowEnd.Sub(f.rowStart) >= driftedSpan && now.Sub(f.rowEnd) < driftQuiet
}

// driftFacts are what the status says of drift.
type driftFacts struct {
	report v1alpha1.DriftReport
	// message is that of Drifted; empty: it is not True.
	message string
}

func (d *drift) facts() driftFacts {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := driftFacts{report: v1alpha1.DriftReport{Repairs: d.repairs, Examples: wording.Examples(d.examples)}}
	if !d.last.IsZero() {
		out.report.LastTime = seconds(d.last)
	}
	var messages []string
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		if f := d.families[family]; f != nil && f.drifted(d.clock.Now()) {
			messages = append(messages, f.message)
		}
	}
	out.message = strings.Join(messages, "; ")
	return out
}

// driftedCondition is the condition Drifted; nil where there is nothing to say.
func driftedCondition(f driftFacts, former []metav1.Condition) *metav1.Condition {
	switch {
	case f.message != "":
		return &metav1.Condition{
			Type: v1alpha1.ConditionDrifted, Status: metav1.ConditionTrue,
			Reason: v1alpha1.ReasonRulesUndone, Message: f.message,
		}
	case meta.FindStatusCondition(former, v1alpha1.ConditionDrifted) != nil:
		return &metav1.Condition{
			Type: v1alpha1.ConditionDrifted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoDrift,
			Message: fmt.Sprintf("nobody has undone rules again and again in the last %s", driftQuiet),
		}
	default:
		return nil
	}
}

// clearToRepair reports whether what others have changed may be mended now. The
// change may be the first that is seen of another proxy.
func (a *Agent) clearToRepair(ctx context.Context) bool { return a.stillOurTurn(ctx, false) }

// noticed is called when somebody else may have changed a family's rules.
func (a *Agent) noticed(family dataplane.Family, c dataplane.Change) {
	a.log.V(2).Info("Somebody else may have changed rules of ours; looking", "ipFamily", family, "by", c.By)
	a.loop.LookBy(a.drift.noticed(family, c))
}

// lookAtRules compares the families of which somebody else may have changed
// rules. The sync loop calls it.
func (a *Agent) lookAtRules(ctx context.Context) error {
	families := a.drift.takeLooks()
	if a.store.auditing() {
		a.loop.Trigger()
		return nil
	}
	if !a.mayWrite() {
		return nil // before the first write after that everything is compared
	}
	epoch := a.store.currentEpoch()
	rulesets := a.store.verifiable()
	for family := range rulesets {
		if !slices.Contains(families, family) {
			delete(rulesets, family)
		}
	}
	for _, family := range families {
		if rulesets[family] == nil { // it is about to be written
			a.lookAgain(family, a.options.Clock.Now().Add(lookAgainPause))
		}
	}
	return a.compare(ctx, epoch, rulesets, true)
}

func (a *Agent) lookAgain(family dataplane.Family, at time.Time) {
	a.drift.lookAgain(family)
	a.loop.LookBy(at)
}

// compare compares the kernel to rulesets, which are of an epoch of the store, and
// repairs what differs. A look is at changes by others alone.
func (a *Agent) compare(ctx context.Context, epoch int, rulesets map[dataplane.Family]*dataplane.Ruleset, look bool) error {
	start := a.options.Clock.Now()
	outcomes := a.fanout.Verify(ctx, rulesets)
	now := a.options.Clock.Now()
	drifted := a.drift.compared(outcomes, now, now.Sub(start))
	if a.store.currentEpoch() != epoch {
		a.drift.forget() // our turn has ended meanwhile: what was found is others' now
		return nil
	}
	a.metrics.compared(outcomes)
	clear := len(drifted) == 0 || a.clearToRepair(ctx)
	later := map[dataplane.Family]bool{}
	for family, at := range drifted {
		if !clear {
			at = latest(at, now.Add(lookAgainPause))
		}
		if later[family] = at.After(now); later[family] {
			a.lookAgain(family, at)
		}
	}
	again := a.store.compared(epoch, outcomes, later, look)
	for family, outcome := range outcomes {
		if outcome.Value.Count == 0 {
			continue
		}
		message := "The kernel differed from what is wanted; repairing"
		if later[family] {
			message = "Somebody else has undone rules again; repairing them after a pause"
		}
		if !clear {
			message = "Rules have been changed; leaving them, because another proxy may be active"
		}
		a.log.Info(message, "ipFamily", family, "differences", outcome.Value.Count, "examples", wording.Examples(outcome.Value.Examples), "changedBy", a.drift.by(family))
	}
	if again { // also what could not be verified
		return a.sync(ctx) // before it is told: most of it does not last
	}
	a.pokeStatus()
	return nil
}

// by is who has given the last sign of a change.
func (d *drift) by(family dataplane.Family) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.families[family].by
}

// latest returns the later of two times.
func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
