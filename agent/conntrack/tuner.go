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
	// UsageStep is how far the use of the table may move, in points, before that
	// is written by itself.
	UsageStep = 5
	// PressureAdvice says what a nearly full table means and what to do.
	PressureAdvice = "once it is full, new connections to and from this node fail while those that are open go on. Raise spec.settings.conntrack.maxPerCore or min of the NodeProxy, or find who holds so many connections (conntrack -L on the node)"
)

// FiguresAge is how old the figures of connection tracking in a status may be.
const FiguresAge = 5 * time.Second

// Tracking is the kernel's connection tracking as a whole.
type Tracking interface {
	// Tune makes the kernel's settings those that complete settings ask for,
	// where they differ and can be written.
	Tune(settings *v1alpha1.ConntrackSettings) Tuned
	// Figures are the state of the table. The error wraps
	// ErrUntracked where there is none.
	Figures() (Figures, error)
}

// Tuner keeps the kernel's connection tracking as the settings ask, and
// knows its figures. Without a kernel it does nothing.
type Tuner struct {
	Kernel  Tracking
	clock   clock.PassiveClock
	log     logr.Logger
	metrics *Metrics
	removed atomic.Int64 // stale flows, since the start

	mu sync.Mutex // guards everything below
	// tuned are the settings that were last made the kernel's; nil: none since
	// others may have changed them.
	tuned     *v1alpha1.ProxySettings
	looked    bool // at the kernel's settings, once
	untracked bool // the kernel had no connection tracking then
	liberal   bool // as the kernel had it then
	unmet     []string

	figures *Figures  // nil: not known
	read    time.Time // when they were; zero: to be read
	failure string    // of reading them
	pressed bool
}

// TunerFacts are what the status says of connection tracking.
type TunerFacts struct {
	Report   *v1alpha1.ConntrackReport // nil: not known
	Warnings []string
}

// NewTuner returns a tuner that has applied nothing yet.
func NewTuner(kernel Tracking, clk clock.PassiveClock, log logr.Logger, m *Metrics) *Tuner {
	return &Tuner{Kernel: kernel, clock: clk, log: log, metrics: m}
}

// Forget has the settings looked at again before the next write: others may
// have changed them.
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

// Late reports whether settings are applied, but the kernel did not track connections then.
func (t *Tuner) Late() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tuned != nil && t.untracked
}

// Tune makes the kernel's settings those given, says in the log what that
// changed, and reports whether the rules that depend on them have to change.
func (t *Tuner) Tune(settings *v1alpha1.ProxySettings) bool {
	if t.Kernel == nil || settings == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	done := t.Kernel.Tune(settings.Conntrack)
	again := t.tuned == settings && !t.untracked && len(t.unmet) == 0
	for _, c := range done.Changes {
		if again {
			t.log.Info("Somebody else has changed a setting of connection tracking; it is put right. See what else on this node writes sysctls, or leave the setting to it: spec.settings.conntrack of the NodeProxy", "sysctl", c.Sysctl, "found", c.From, "value", c.To)
		} else {
			t.log.Info("Changed a setting of connection tracking", "sysctl", c.Sysctl, "former", c.From, "value", c.To)
		}
	}
	if done.Untracked {
		done.Liberal = false
		done.Unmet = []string{"the kernel tracks no connections, so that spec.settings.conntrack is not in effect: see that the module nf_conntrack can be loaded (modprobe nf_conntrack on the node)"}
	}
	// Before rules are written for the first time nothing needs it yet.
	early := done.Untracked && !t.looked
	if !early {
		t.sayUnmet(done.Unmet)
		t.unmet = done.Unmet
	}
	follow := t.looked && done.Liberal != t.liberal
	t.looked, t.tuned, t.untracked, t.liberal = true, settings, done.Untracked, done.Liberal
	t.read = time.Time{} // the figures have changed as well
	return follow
}

func (t *Tuner) sayUnmet(unmet []string) {
	switch {
	case slices.Equal(unmet, t.unmet):
	case len(unmet) > 0:
		t.log.Info("Connection tracking is not as the settings ask; all else is done. Looking again at each verification", "settings", unmet)
	default:
		t.log.Info("Connection tracking is as the settings ask now")
	}
}

// Cleaned counts removed flows.
func (t *Tuner) Cleaned(pass Pass) {
	for _, n := range pass.Removed {
		t.removed.Add(int64(n))
	}
}

// Facts returns what the status says. What is not as the settings ask is in it
// only while we see to it.
func (t *Tuner) Facts(ours bool) TunerFacts {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.clock.Now(); t.Kernel != nil && (t.read.IsZero() || now.Sub(t.read) >= FiguresAge || now.Before(t.read)) {
		t.read = now
		t.measure()
	}
	var out TunerFacts
	if ours {
		out.Warnings = slices.Clone(t.unmet)
	}
	if t.failure != "" {
		out.Warnings = append(out.Warnings, t.failure+"; what status.conntrack says of them is not up to date")
	}
	if f := t.figures; f != nil {
		out.Report = &v1alpha1.ConntrackReport{
			Entries: f.Entries, Max: f.Max, UsagePercent: f.UsagePercent(), Buckets: f.Buckets,
			InsertFailed: f.InsertFailed, Drop: f.Drop, EarlyDrop: f.EarlyDrop, FlowsCleaned: t.removed.Load(),
		}
	}
	return out
}

// measure reads the figures. The caller holds mu.
func (t *Tuner) measure() {
	f, err := t.Kernel.Figures()
	failure := ""
	switch {
	case errors.Is(err, ErrUntracked):
		t.figures = nil
		t.metrics.show(Figures{})
	case err != nil:
		failure = err.Error()
		if t.figures == nil && f.Max > 0 {
			t.figures = &Figures{}
		}
		if t.figures != nil && f.Max > 0 { // the counters alone cannot be read
			f.Counters = t.figures.Counters
			*t.figures = f
		}
	default:
		t.figures = &f
	}
	switch {
	case failure == t.failure:
	case failure != "":
		t.log.Error(err, "Could not read the figures of connection tracking; traffic is not affected. Trying again")
	default:
		t.log.Info("The figures of connection tracking can be read again")
	}
	t.failure = failure
	if t.figures != nil {
		t.metrics.show(*t.figures)
		t.notePressure(t.figures)
	}
}

// notePressure says in the log when the table has become nearly full.
func (t *Tuner) notePressure(f *Figures) {
	pressed := Pressed(t.pressed, f.Entries, f.Max)
	switch {
	case pressed && !t.pressed:
		t.log.Info("The connection tracking table is nearly full; "+PressureAdvice, "entries", f.Entries, "max", f.Max, "drop", f.Drop, "earlyDrop", f.EarlyDrop)
	case !pressed && t.pressed:
		t.log.Info("The connection tracking table has room again", "entries", f.Entries, "max", f.Max, "drop", f.Drop, "earlyDrop", f.EarlyDrop)
	}
	t.pressed = pressed
}
