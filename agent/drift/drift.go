package drift

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// GatherPause is the time from a first sign of a change by others until it is
	// looked at: who flushes one table is about to flush another.
	GatherPause = 25 * time.Millisecond
	// restPerLook bounds what looks cost where one after the other finds nothing:
	// after cleanLooks of them in a row, with less than cleanSpan between two, the
	// next on mere suspicion waits for so many seconds as the last took. Where
	// something is gone for sure it waits for as long as the last took, so that
	// who adds and removes rules all the time leaves half of a processor alone.
	restPerLook = 20
	// CleanLooks is how many looks in a row must find nothing before repairs are quick again.
	CleanLooks = 3
	cleanSpan  = time.Minute

	// Quiet is the time without a repair that ends a row of them. The first
	// repairsAtOnce of a row are made at once, the next waits for
	// shortestDriftPause after the last, and each further one twice as long, up to
	// LongestDriftPause.
	Quiet              = 5 * time.Minute
	repairsAtOnce      = 2
	shortestDriftPause = time.Second
	// LongestDriftPause is the longest pause between two repairs.
	LongestDriftPause = 30 * time.Second
	// A row of driftedRepairs that lasts for driftedSpan sets Drifted. One reload
	// of a firewall may undo rules several times, but not for as long.
	driftedRepairs = 3
	driftedSpan    = 10 * time.Second
	// examplesPerRepair bounds what one repair may tell of, so that it does not
	// push out all others.
	examplesPerRepair = 3
)

// Tracker knows what others have changed of what we wrote, and when to repair it.
// Its methods may be called from any goroutine.
type Tracker struct {
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
	// found is what others have changed and no Apply has repaired yet.
	found *dataplane.Difference
	// The row of repairs that goes on.
	row              int
	rowStart, rowEnd time.Time
	message          string // of Drifted
}

// New returns a tracker of IP families.
func New(c clock.PassiveClock, families []dataplane.Family) *Tracker {
	d := &Tracker{clock: c, families: map[dataplane.Family]*familyDrift{}}
	for _, family := range families {
		d.families[family] = &familyDrift{}
	}
	return d
}

// Noticed takes a sign that others have changed something, and returns when to
// look.
func (d *Tracker) Noticed(family dataplane.Family, c dataplane.Change) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, now := d.families[family], d.clock.Now()
	f.due = true
	if c.By != "" {
		f.by = c.By
	}
	at := later(now.Add(GatherPause), f.rested(c.Sure))
	if f.found != nil { // what there is to see is known
		at = later(at, f.nextRepair(now))
	}
	return at
}

// TakeLooks returns the families that a look is due at.
func (d *Tracker) TakeLooks() []dataplane.Family {
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

// LookAgain asks for another look at a family.
func (d *Tracker) LookAgain(family dataplane.Family) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.families[family].due = true
}

// Compared takes what a comparison has found that has ended now and took so long.
// It returns the families that others have changed, and when each may be repaired:
// now at the earliest.
func (d *Tracker) Compared(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Difference], now time.Time, took time.Duration) map[dataplane.Family]time.Time {
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
	case f.clean < CleanLooks:
		return time.Time{}
	case sure:
		return f.cleanEnd.Add(f.cleanTook)
	default:
		return f.cleanEnd.Add(restPerLook * f.cleanTook)
	}
}

// Synced takes the outcomes of writes and returns the families that have been
// repaired by them. The first complete set, after a start or after another proxy,
// repairs nothing: what it found was nobody's doing against us.
func (d *Tracker) Synced(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result], first bool) []dataplane.Family {
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
func (d *Tracker) repaired(family dataplane.Family, f *familyDrift, found *dataplane.Difference) {
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
	if f.row == 0 || now.Sub(f.rowEnd) >= Quiet {
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
		family, times, f.rowStart.UTC().Format(time.RFC3339), last, LongestDriftPause)
}

// nextRepair is when a change that others have made may be repaired.
func (f *familyDrift) nextRepair(now time.Time) time.Time {
	if f.row < repairsAtOnce || now.Sub(f.rowEnd) >= Quiet {
		return now
	}
	pause := shortestDriftPause
	for range f.row - repairsAtOnce {
		if pause >= LongestDriftPause {
			break
		}
		pause *= 2
	}
	return later(now, f.rowEnd.Add(min(pause, LongestDriftPause)))
}

// drifted reports whether somebody keeps undoing the family's rules.
func (f *familyDrift) drifted(now time.Time) bool {
	return f.row >= driftedRepairs && f.rowEnd.Sub(f.rowStart) >= driftedSpan && now.Sub(f.rowEnd) < Quiet
}

// Forget drops what others had changed of what we wrote: they write now.
func (d *Tracker) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for family, f := range d.families {
		d.families[family] = &familyDrift{row: f.row, rowStart: f.rowStart, rowEnd: f.rowEnd, message: f.message}
	}
}

// Facts are what is reported of drift.
type Facts struct {
	// Repairs counts them since the start; lastTime is that of the last, zero before
	// the first. Examples name what was repaired, the newest first.
	Repairs  int64
	LastTime time.Time
	Examples []string
	// Message is that of the condition Drifted; empty: it is not True.
	Message string
}

// Facts returns what the status and the metrics show.
func (d *Tracker) Facts() Facts {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := Facts{Repairs: d.repairs, LastTime: d.last, Examples: slices.Clone(d.examples)}
	var messages []string
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		if f := d.families[family]; f != nil && f.drifted(d.clock.Now()) {
			messages = append(messages, f.message)
		}
	}
	out.Message = strings.Join(messages, "; ")
	return out
}

// By is who has given the last sign of a change.
func (d *Tracker) By(family dataplane.Family) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.families[family].by
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Condition is the condition Drifted; nil where there is nothing to report.
func (f *Facts) Condition(former []metav1.Condition) *metav1.Condition {
	switch {
	case f.Message != "":
		return &metav1.Condition{
			Type: v1alpha1.ConditionDrifted, Status: metav1.ConditionTrue,
			Reason: v1alpha1.ReasonRulesModified, Message: f.Message,
		}
	case meta.FindStatusCondition(former, v1alpha1.ConditionDrifted) != nil:
		return &metav1.Condition{
			Type: v1alpha1.ConditionDrifted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoDrift,
			Message: fmt.Sprintf("nobody has undone rules again and again in the last %s", Quiet),
		}
	default:
		return nil
	}
}
