package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// patience is how long a reader waits for the disk.
const patience = 10 * time.Second

// errDiskHangs is the error of a disk that does not answer.
var errDiskHangs = fmt.Errorf("the disk has not answered within %s: check the file system of --state-dir", patience)

// Disk gives bounded access to the node's checkpoint: a disk can hang forever, and must not
// block who needs it.
type Disk struct {
	*File
	Metrics *Metrics
	here    Identity
	clock   clock.Clock
	busy    chan struct{} // has one element while the file is read or written

	// header is that of the file when the agent started; nil: none can be used.
	header *Header
}

// NewDisk returns access to a file for an agent with an identity.
func NewDisk(file *File, here Identity, c clock.Clock, m *Metrics) *Disk {
	return &Disk{File: file, Metrics: m, here: here, clock: c, busy: make(chan struct{}, 1)}
}

// Within does work with the file and reports whether it has ended within the limit. Such
// work is done one after the other, so that it does not pile up on a disk that hangs.
func (d *Disk) Within(limit time.Duration, work func()) bool {
	timer := d.clock.NewTimer(limit)
	defer timer.Stop()
	select {
	case d.busy <- struct{}{}:
	case <-timer.C():
		return false
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { <-d.busy }()
		work()
	}()
	select {
	case <-done:
		return true
	case <-timer.C():
		return false
	}
}

// within returns what read returns, unless the disk hangs.
func within[T any](d *Disk, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	got := make(chan result, 1) // a late one is dropped
	if !d.Within(patience, func() {
		value, err := read()
		got <- result{value, err}
	}) {
		var none T
		return none, errDiskHangs
	}
	r := <-got
	return r.value, r.err
}

// Open reads the header of the file, at startup. That there is no file is no error.
func (d *Disk) Open() error {
	if d == nil {
		return nil
	}
	header, err := within(d, func() (*Header, error) { return d.Peek(d.clock.Now()) })
	switch {
	case errors.Is(err, ErrNone):
		return nil
	case err != nil:
		d.Metrics.Failures.WithLabelValues("read").Inc()
		return err
	}
	d.header = header
	d.Metrics.wrote(header.Written)
	return nil
}

// Conflicted reports whether another proxy was active when the file was written. After a
// reboot we may start before it.
func (d *Disk) Conflicted() bool { return d != nil && d.header != nil && d.header.ConflictingProxy }

// Load reads the checkpoint as it can be used here.
func (d *Disk) Load() (*Restorable, error) {
	set, err := within(d, func() (*Set, error) { return d.Read(d.clock.Now()) })
	if err != nil {
		return nil, err
	}
	r := &Restorable{Set: set, Rebooted: !set.Same(d.here)}
	for _, o := range r.Services {
		o.Generation = 0 // so that objects of the API are compared with it
	}
	if r.Rebooted {
		r.Set = set.WithoutLocalEndpoints()
	}
	return r, nil
}

// LackedBy returns the checkpoint if its names differ from the first list; nil: there is
// none, or it has the same.
func (d *Disk) LackedBy(names int, hash uint64) (*Restorable, error) {
	if d == nil || d.header == nil || d.header.Services == names && d.header.NamesHash == hash {
		return nil, nil
	}
	return d.Load()
}

// Save writes a set and returns its number of bytes. The caller is within Within.
func (d *Disk) Save(set *Set) (int64, error) {
	set.Identity = d.here
	slices.SortFunc(set.Services, func(a, b *v1alpha1.ServiceProxyRules) int { return strings.Compare(a.Name, b.Name) })
	size, err := d.Write(set)
	if err != nil {
		d.Metrics.Failures.WithLabelValues("write").Inc()
		return 0, err
	}
	d.Metrics.wrote(set.Written)
	d.Metrics.Size.Set(float64(size))
	return size, nil
}

// Discard removes the file, and the remains of a write that was interrupted.
func (d *Disk) Discard() error {
	if _, err := within(d, func() (struct{}, error) { return struct{}{}, d.Remove() }); err != nil {
		return fmt.Errorf("removing the checkpoint, from which a restarted agent could restore the rules: %w", err)
	}
	d.Metrics.wrote(time.Time{})
	d.Metrics.Size.Set(0)
	return nil
}

// Metrics are those of the checkpoint.
type Metrics struct {
	Written, Size, inUse prometheus.Gauge
	Failures             *prometheus.CounterVec
}

// NewMetrics registers the metrics of the checkpoint.
func NewMetrics(r prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "nodeproxy_agent_checkpoint_" + name, Help: help})
	}
	m := &Metrics{
		Written: gauge("written_timestamp_seconds", "When the checkpoint on disk was written; 0: none can be used."),
		Size:    gauge("size_bytes", "Size of the checkpoint on disk as last written by this agent."),
		inUse:   gauge("in_use", "1 while the node uses the checkpoint on disk, because the API has not answered since the agent started."),
		Failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nodeproxy_agent_checkpoint_failures_total",
			Help: "Failed attempts to read or write the checkpoint on disk, by operation (read, write).",
		}, []string{"operation"}),
	}
	r.MustRegister(m.Written, m.Size, m.inUse, m.Failures)
	for _, operation := range []string{"read", "write"} {
		m.Failures.WithLabelValues(operation)
	}
	return m
}

// wrote shows when the checkpoint was written; zero: there is none.
func (m *Metrics) wrote(at time.Time) {
	seconds := 0.0
	if !at.IsZero() {
		seconds = float64(at.UnixMilli()) / 1000
	}
	m.Written.Set(seconds)
}

// Used shows whether a checkpoint is in use.
func (m *Metrics) Used(active bool) {
	value := 0.0
	if active {
		value = 1
	}
	m.inUse.Set(value)
}
