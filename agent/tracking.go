package agent

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// figuresAge is how old the figures of connection tracking in a status may be.
const figuresAge = 5 * time.Second

// Tracking is the kernel's connection tracking as a whole.
type Tracking interface {
	// Tune makes the kernel's settings those that complete settings ask for,
	// where they differ and can be written.
	Tune(settings *v1alpha1.ConntrackSettings) conntrack.Tuned
	// Figures are the state of the table. The error wraps
	// conntrack.ErrUntracked where there is none.
	Figures() (conntrack.Figures, error)
}

// tracking keeps the kernel's connection tracking as the settings ask, and
// knows its figures. Without a kernel it does nothing.
type tracking struct {
	kernel  Tracking
	clock   clock.PassiveClock
	log     logr.Logger
	metrics *trackingMetrics
	removed atomic.Int64 // stale flows, since the start

	mu sync.Mutex // guards everything below
	// tuned are the settings that were last made the kernel's; nil: none since
	// others may have changed them.
	tuned     *v1alpha1.ProxySettings
	looked    bool // at the kernel's settings, once
	untracked bool // the kernel had no connection tracking then
	liberal   bool // as the kernel had it then
	unmet     []string

	figures *conntrack.Figures // nil: not known
	read    time.Time          // when they were; zero: to be read
	failure string             // of reading them
	pressed bool
}

// trackingFacts are what the status says of connection tracking.
type trackingFacts struct {
	report   *v1alpha1.ConntrackReport // nil: not known
	warnings []string
}

func newTracking(o *Options, m *trackingMetrics) *tracking {
	return &tracking{kernel: o.Tracking, clock: o.Clock, log: o.Log, metrics: m}
}

// forget has the settings looked at again before the next write: others may
// have changed them.
func (t *tracking) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tuned = nil
}

// tuneTracking makes the kernel's settings of connection tracking those in
// force, if these are new. Only the sync loop calls it, and only while the agent
// may write. It is done before rules are written, some of which depend on them.
func (a *Agent) tuneTracking() {
	settings, _, _ := a.store.OwnObject()
	if a.tracking.due(settings) {
		a.tune(settings)
	}
}

// tuneLate does that if there was no connection tracking before rules were
// written: some of them bring it.
func (a *Agent) tuneLate() {
	settings, _, _ := a.store.OwnObject()
	if a.tracking.late() && a.tune(settings) {
		a.loop.Trigger()
	}
}

// retuneTracking looks whether others have changed the kernel's settings, and
// puts them right. It reports whether rules have to follow.
func (a *Agent) retuneTracking() bool {
	settings, _, _ := a.store.OwnObject()
	return a.tune(settings)
}

// tune reports whether rules have to follow.
func (a *Agent) tune(settings *v1alpha1.ProxySettings) bool {
	follow := a.tracking.tune(settings)
	if follow {
		a.store.Refresh()
	}
	return follow
}

func (t *tracking) due(settings *v1alpha1.ProxySettings) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tuned != settings
}

func (t *tracking) late() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tuned != nil && t.untracked
}

// tune makes the kernel's settings those given, says in the log what that
// changed, and reports whether the rules that depend on them have to change.
func (t *tracking) tune(settings *v1alpha1.ProxySettings) bool {
	if t.kernel == nil || settings == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	done := t.kernel.Tune(settings.Conntrack)
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

func (t *tracking) sayUnmet(unmet []string) {
	switch {
	case slices.Equal(unmet, t.unmet):
	case len(unmet) > 0:
		t.log.Info("Connection tracking is not as the settings ask; all else is done. Looking again at each verification", "settings", unmet)
	default:
		t.log.Info("Connection tracking is as the settings ask now")
	}
}

// cleaned counts removed flows.
func (t *tracking) cleaned(pass conntrack.Pass) {
	for _, n := range pass.Removed {
		t.removed.Add(int64(n))
	}
}

// facts returns what the status says. What is not as the settings ask is in it
// only while we see to it.
func (t *tracking) facts(ours bool) trackingFacts {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.clock.Now(); t.kernel != nil && (t.read.IsZero() || now.Sub(t.read) >= figuresAge || now.Before(t.read)) {
		t.read = now
		t.measure()
	}
	var out trackingFacts
	if ours {
		out.warnings = slices.Clone(t.unmet)
	}
	if t.failure != "" {
		out.warnings = append(out.warnings, t.failure+"; what status.conntrack says of them is not up to date")
	}
	if f := t.figures; f != nil {
		out.report = &v1alpha1.ConntrackReport{
			Entries: f.Entries, Max: f.Max, UsagePercent: f.UsagePercent(), Buckets: f.Buckets,
			InsertFailed: f.InsertFailed, Drop: f.Drop, EarlyDrop: f.EarlyDrop, FlowsCleaned: t.removed.Load(),
		}
	}
	return out
}

// measure reads the figures. The caller holds mu.
func (t *tracking) measure() {
	f, err := t.kernel.Figures()
	failure := ""
	switch {
	case errors.Is(err, conntrack.ErrUntracked):
		t.figures = nil
		t.metrics.show(conntrack.Figures{})
	case err != nil:
		failure = err.Error()
		if t.figures == nil && f.Max > 0 {
			t.figures = &conntrack.Figures{}
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
func (t *tracking) notePressure(f *conntrack.Figures) {
	pressed := conntrack.Pressed(t.pressed, f.Entries, f.Max)
	switch {
	case pressed && !t.pressed:
		t.log.Info("The connection tracking table is nearly full; "+pressureAdvice, "entries", f.Entries, "max", f.Max, "drop", f.Drop, "earlyDrop", f.EarlyDrop)
	case !pressed && t.pressed:
		t.log.Info("The connection tracking table has room again", "entries", f.Entries, "max", f.Max, "drop", f.Drop, "earlyDrop", f.EarlyDrop)
	}
	t.pressed = pressed
}

// trackingMetrics are the metrics of the connection tracking table.
type trackingMetrics struct {
	entries, most, buckets        prometheus.Gauge
	insertFailed, drop, earlyDrop atomic.Int64
}

func newTrackingMetrics(registry prometheus.Registerer) *trackingMetrics {
	m := &trackingMetrics{}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "nodeproxy_agent_conntrack_" + name, Help: help})
		registry.MustRegister(g)
		return g
	}
	counter := func(name, help string, value *atomic.Int64) {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "nodeproxy_agent_conntrack_" + name, Help: help},
			func() float64 { return float64(value.Load()) }))
	}
	m.entries = gauge("entries", "Connections in the connection tracking table, at most some seconds ago; 0 also where there is none.")
	m.most = gauge("max_entries", "How many connections the connection tracking table takes; 0: any number, or there is none.")
	m.buckets = gauge("buckets", "Size of the hash table of the connection tracking table.")
	counter("insert_failed_total", "Connections that could not be entered into the connection tracking table, as the kernel counts them.", &m.insertFailed)
	counter("dropped_packets_total", "Packets dropped because the connection tracking table was full, as the kernel counts them.", &m.drop)
	counter("early_dropped_total", "Unanswered connections evicted from the full connection tracking table, as the kernel counts them.", &m.earlyDrop)
	return m
}

func (m *trackingMetrics) show(f conntrack.Figures) {
	m.entries.Set(float64(f.Entries))
	m.most.Set(float64(f.Max))
	m.buckets.Set(float64(f.Buckets))
	m.insertFailed.Store(f.InsertFailed)
	m.drop.Store(f.Drop)
	m.earlyDrop.Store(f.EarlyDrop)
}
