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
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// GatherPause is the time from the first indication of an external change until the comparison:
	// a program that flushes one table is about to flush another.
	GatherPause = 25 * time.Millisecond
	// restPerCheck limits the cost of comparisons that find nothing: after CleanChecks of them
	// in a row, with less than cleanSpan between two, the next on mere suspicion waits for
	// restPerCheck times as long as the last took. If a change is certain it waits for as long
	// as the last took, so that a program that adds and removes rules all the time causes at
	// most half of a processor's load.
	restPerCheck = 20
	// CleanChecks is how many comparisons in a row must find nothing.
	CleanChecks = 3
	cleanSpan   = time.Minute

	// Quiet is the time without a repair that ends a row of them. The first repairsAtOnce of a
	// row are immediate, the next waits for shortestDriftPause after the last, and each
	// further one twice as long, up to LongestDriftPause.
	Quiet              = 5 * time.Minute
	repairsAtOnce      = 2
	shortestDriftPause = time.Second
	// LongestDriftPause is the longest pause between two repairs.
	LongestDriftPause = 30 * time.Second
	// A row of driftedRepairs that lasts for driftedSpan sets Drifted. One reload of a firewall
	// may remove rules several times, but not for as long.
	driftedRepairs = 3
	driftedSpan    = 10 * time.Second
	// examplesPerRepair limits the examples of one repair, so that it does not displace all
	// others.
	examplesPerRepair = 3
)

// Tracker records external changes, and decides when to repair them. Its methods may be called
// from any goroutine.
type Tracker struct {
	clock clock.PassiveClock

	mu       sync.Mutex // guards everything below
	families map[dataplane.Family]*familyDrift
	repairs  int64
	last     time.Time // of the last repair
	examples []string  // the newest first
}

// familyDrift is what other programs have changed of one IP family.
type familyDrift struct {
	due bool   // a comparison is
	by  string // the program that changed something last, human-readable
	// clean counts consecutive comparisons that found nothing; cleanEnd is when the last one
	// ended, which took cleanTook.
	clean     int
	cleanEnd  time.Time
	cleanTook time.Duration
	// found is what no Apply has repaired yet.
	found *dataplane.Difference
	// The current row of repairs.
	row              int
	rowStart, rowEnd time.Time
	// summary and example are the family's parts of the message of Drifted; empty: not yet, or the
	// last repair has no example.
	summary, example string
}

// New returns a tracker of IP families.
func New(c clock.PassiveClock, families []dataplane.Family) *Tracker {
	d := &Tracker{clock: c, families: map[dataplane.Family]*familyDrift{}}
	for _, family := range families {
		d.families[family] = &familyDrift{}
	}
	return d
}

// Noticed takes an indication of an external change, and returns when to compare.
func (d *Tracker) Noticed(family dataplane.Family, c dataplane.Change) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, now := d.families[family], d.clock.Now()
	f.due = true
	if c.By != "" {
		f.by = c.By
	}
	times := []time.Time{now.Add(GatherPause), f.rested(c.Sure)}
	if f.found != nil { // the difference is known
		times = append(times, f.nextRepair(now))
	}
	return slices.MaxFunc(times, time.Time.Compare)
}

// TakeDue returns the families whose comparison is due.
func (d *Tracker) TakeDue() []dataplane.Family {
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

// CheckAgain requests another comparison of a family.
func (d *Tracker) CheckAgain(family dataplane.Family) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.families[family].due = true
}

// Compared takes the outcome of a comparison that has ended now. It returns the families that
// other programs have changed, and when each may be repaired: now at the earliest.
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
			if now.Sub(f.cleanEnd) >= cleanSpan+restPerCheck*f.cleanTook {
				f.clean = 0
			}
			f.clean, f.cleanEnd, f.cleanTook = f.clean+1, now, took
		}
	}
	return drifted
}

// rested is when another comparison may be worth its cost; zero: at any time.
func (f *familyDrift) rested(sure bool) time.Time {
	switch {
	case f.clean < CleanChecks:
		return time.Time{}
	case sure:
		return f.cleanEnd.Add(f.cleanTook)
	default:
		return f.cleanEnd.Add(restPerCheck * f.cleanTook)
	}
}

// Synced takes the outcomes of writes and returns the families that these have repaired. The
// first complete set, after a start or after another proxy, repairs nothing: the differences
// are no drift.
func (d *Tracker) Synced(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result], first bool) []dataplane.Family {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []dataplane.Family
	for family, outcome := range outcomes {
		if outcome.Err != nil || outcome.Value.Kind != v1alpha1.SyncFull && outcome.Value.Repaired.Count == 0 {
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
	var examples []string
	for _, e := range found.Examples[:min(len(found.Examples), examplesPerRepair)] {
		examples = append(examples, string(family)+": "+e+by)
	}
	d.examples = append(examples, d.examples...)
	d.examples = d.examples[:min(len(d.examples), dataplane.MaxExamples)]
	if f.row == 0 || now.Sub(f.rowEnd) >= Quiet {
		f.row, f.rowStart, f.summary = 0, now, ""
	}
	f.row, f.rowEnd = f.row+1, now
	f.by = ""
	if f.drifted(now) {
		f.report(examples)
	}
}

// report updates the family's parts of the message of Drifted: each time the repairs have doubled,
// so that the status is not written at each of them.
func (f *familyDrift) report(examples []string) {
	times := driftedRepairs
	for times*2 <= f.row {
		times *= 2
	}
	if f.summary != "" && times != f.row {
		return
	}
	f.example = ""
	if len(examples) > 0 {
		f.example = text.Truncate(text.Clause(examples[0]), wording.MaxExample)
	}
	f.summary = fmt.Sprintf("repaired at least %d times since %s", times, f.rowStart.UTC().Format(time.RFC3339))
}

// nextRepair is when an external change may be repaired.
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
	return slices.MaxFunc([]time.Time{now, f.rowEnd.Add(min(pause, LongestDriftPause))}, time.Time.Compare)
}

// drifted reports whether another program modifies the family's rules repeatedly.
func (f *familyDrift) drifted(now time.Time) bool {
	return f.row >= driftedRepairs && f.rowEnd.Sub(f.rowStart) >= driftedSpan && now.Sub(f.rowEnd) < Quiet
}

// Forget discards external changes: another proxy owns the rules now.
func (d *Tracker) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for family, f := range d.families {
		d.families[family] = &familyDrift{row: f.row, rowStart: f.rowStart, rowEnd: f.rowEnd, summary: f.summary, example: f.example}
	}
}

// Facts are what is reported of drift.
type Facts struct {
	// Repairs is their number since the start; LastTime is that of the last, zero before the
	// first. Examples name what was repaired, the newest first.
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
	out.Message = d.message()
	return out
}

// message is that of the condition Drifted, two sentences about all families; empty: none has
// drifted. The caller holds mu.
func (d *Tracker) message() string {
	var families, repairs, examples []string
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		f := d.families[family]
		if f == nil || !f.drifted(d.clock.Now()) {
			continue
		}
		families, repairs = append(families, string(family)), append(repairs, f.summary)
		if f.example != "" {
			examples = append(examples, f.example)
		}
	}
	if len(families) == 0 {
		return ""
	}
	if len(families) > 1 {
		for i, family := range families {
			repairs[i] = family + " " + repairs[i]
		}
	}
	text := fmt.Sprintf("Another program repeatedly modifies nodeproxy's %s rules: %s, with pauses of up to %s in which Services may fail on this node",
		strings.Join(families, " and "), strings.Join(repairs, ", "), LongestDriftPause)
	if len(examples) > 0 {
		text += "; last: " + strings.Join(examples, "; ")
	}
	return text + `. Find the program that flushes or restores rules on this node (a firewall manager, a script, another proxy; "nft monitor" names programs that use nf_tables) and stop it.`
}

// By is the program that changed something last.
func (d *Tracker) By(family dataplane.Family) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.families[family].by
}

// Condition is the condition Drifted; nil: there is nothing to report.
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
			Message: fmt.Sprintf("No program has repeatedly modified rules in the last %s.", Quiet),
		}
	default:
		return nil
	}
}
