package conntrack

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// UsageStep is by how many percentage points usage must change to cause a write of the status.
	UsageStep = 5
	// PressureAdvice states what a nearly full table means and what to do.
	PressureAdvice = "once it is full, new connections to and from this node fail, while open ones continue. Raise spec.settings.conntrack.maxPerCore or min of the NodeProxy, or find the cause of so many connections (conntrack -L on the node)"
	// statisticsAge is how old the statistics of connection tracking in a status may be.
	statisticsAge = 5 * time.Second
)

// Tracking is the kernel's connection tracking as a whole.
type Tracking interface {
	// Tune applies complete settings: it writes what differs, if possible.
	Tune(settings *v1alpha1.ConntrackSettings) Tuned
	// Statistics are the statistics of the table. The error wraps ErrUntracked if there is none.
	Statistics() (Statistics, error)
}

// Tuner applies the settings of connection tracking, and reports its statistics. Without a kernel
// it does nothing.
type Tuner struct {
	kernel  Tracking
	clock   clock.PassiveClock
	log     logr.Logger
	metrics *Metrics
	removed atomic.Int64 // stale flows, since the start

	mu sync.Mutex // guards everything below
	// tuned are the settings that were last applied; nil: other programs may have changed them
	// since.
	tuned *v1alpha1.ProxySettings
	last  *Tuned   // the last result; nil: there is none
	unmet []string // as logged and reported

	statistics *Statistics // nil: unknown
	read       time.Time   // when the statistics were read; zero: read them now
	failure    string      // to read them
	pressed    bool
}

// TunerFacts are what the status reports of connection tracking.
type TunerFacts struct {
	Report   *v1alpha1.ConntrackReport // nil: unknown
	Warnings []string
}

// NewTuner returns a tuner that has applied nothing yet.
func NewTuner(kernel Tracking, clk clock.PassiveClock, log logr.Logger, m *Metrics) *Tuner {
	return &Tuner{kernel: kernel, clock: clk, log: log, metrics: m}
}

// Forget makes the settings due again before the next write: other programs may have changed the
// kernel's.
func (t *Tuner) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tuned = nil
}

// Due reports whether these settings have not been applied yet.
func (t *Tuner) Due(settings *v1alpha1.ProxySettings) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tuned != settings
}

// Late reports whether settings were applied while the kernel did not track connections.
func (t *Tuner) Late() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tuned != nil && t.last.Untracked
}

// Tune applies settings, logs what changed, and reports whether rules that depend on them must
// change.
func (t *Tuner) Tune(settings *v1alpha1.ProxySettings) bool {
	if t.kernel == nil || settings == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	done := t.kernel.Tune(settings.Conntrack)
	again := t.tuned == settings && !t.last.Untracked && len(t.unmet) == 0
	for _, c := range done.Changes {
		if again {
			t.log.Info("Restored a setting of connection tracking that another program changed", "sysctl", c.Sysctl, "found", c.From, "value", c.To)
		} else {
			t.log.Info("Changed a setting of connection tracking", "sysctl", c.Sysctl, "former", c.From, "value", c.To)
		}
	}
	if done.Untracked {
		done.Liberal = false
		done.Unmet = []string{"the kernel tracks no connections, so spec.settings.conntrack has no effect: check that the module nf_conntrack can be loaded (modprobe nf_conntrack on the node)"}
	}
	if !done.Untracked || t.last != nil { // nothing needs it before rules are first written
		t.logUnmet(done.Unmet)
		t.unmet = done.Unmet
	}
	follow := t.last != nil && done.Liberal != t.last.Liberal
	t.tuned, t.last = settings, &done
	t.read = time.Time{} // the statistics have changed as well
	return follow
}

func (t *Tuner) logUnmet(unmet []string) {
	switch {
	case slices.Equal(unmet, t.unmet):
	case len(unmet) > 0:
		t.log.Info("Could not apply all settings of connection tracking; retrying at each verification", "settings", unmet)
	default:
		t.log.Info("All settings of connection tracking are applied now")
	}
}

// Cleaned counts removed flows.
func (t *Tuner) Cleaned(pass Pass) {
	for _, n := range pass.Removed {
		t.removed.Add(int64(n))
	}
}

// Refresh reads the statistics again if they are too old for a status.
func (t *Tuner) Refresh() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.clock.Now(); t.kernel != nil && (t.read.IsZero() || now.Sub(t.read) >= statisticsAge || now.Before(t.read)) {
		t.read = now
		t.measure()
	}
}

// Facts returns what the status reports, with the statistics of the last Refresh. Settings that are
// not applied are among it only while this agent owns the node's proxy rules.
func (t *Tuner) Facts(owned bool) TunerFacts {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out TunerFacts
	if owned {
		out.Warnings = slices.Clone(t.unmet)
	}
	if t.failure != "" {
		out.Warnings = append(out.Warnings, t.failure+"; they are outdated in status.conntrack")
	}
	if f := t.statistics; f != nil {
		out.Report = &v1alpha1.ConntrackReport{
			Entries: f.Entries, Max: f.Max, UsagePercent: f.UsagePercent(), Buckets: f.Buckets,
			InsertFailed: f.InsertFailed, Drop: f.Drop, EarlyDrop: f.EarlyDrop, FlowsCleaned: t.removed.Load(),
		}
	}
	return out
}

// measure reads the statistics. The caller holds mu.
func (t *Tuner) measure() {
	f, err := t.kernel.Statistics()
	failure := ""
	switch {
	case errors.Is(err, ErrUntracked):
		t.statistics = nil
		t.metrics.show(Statistics{})
	case err == nil:
		t.statistics = &f
	default:
		failure = err.Error()
		if f.Max > 0 { // only the counters cannot be read
			if t.statistics != nil {
				f.Counters = t.statistics.Counters
			}
			t.statistics = &f
		}
	}
	switch {
	case failure == t.failure:
	case failure != "":
		t.log.Error(err, "Could not read the statistics of connection tracking; retrying", "effect", "traffic is not affected")
	default:
		t.log.Info("The statistics of connection tracking can be read again")
	}
	t.failure = failure
	if t.statistics != nil {
		t.metrics.show(*t.statistics)
		t.logPressure(t.statistics)
	}
}

// logPressure logs when the table becomes nearly full, and when that ends.
func (t *Tuner) logPressure(f *Statistics) {
	pressed := Pressed(t.pressed, f.Entries, f.Max)
	counts := []any{"entries", f.Entries, "max", f.Max, "drop", f.Drop, "earlyDrop", f.EarlyDrop}
	switch {
	case pressed && !t.pressed:
		t.log.Info("The connection tracking table is nearly full", counts...)
	case !pressed && t.pressed:
		t.log.Info("The connection tracking table is no longer nearly full", counts...)
	}
	t.pressed = pressed
}
