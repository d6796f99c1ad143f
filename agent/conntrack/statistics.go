package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// PressureFrom and pressureTo are how full the table is, in percent, when pressure begins and
// when it ends.
const (
	PressureFrom = 80
	pressureTo   = 70
)

// Statistics are the statistics of the connection tracking table.
type Statistics struct {
	// Entries is the number of connections, Max how many the table takes (0: any number), and
	// Buckets the size of the hash table.
	Entries, Max, Buckets int64
	Counters
}

// Counters are the kernel's, of all CPUs together, since the network namespace exists. They wrap
// at 2^32 for each CPU.
type Counters struct {
	// InsertFailed counts connections that could not be inserted, mostly because another packet
	// had inserted the same one.
	InsertFailed int64
	// Drop counts packets dropped because the table was full.
	Drop int64
	// EarlyDrop counts unanswered connections that were evicted from a full table.
	EarlyDrop int64
}

// UsagePercent is how full the table is, rounded; 0 without a limit.
func (f *Statistics) UsagePercent() int32 {
	if f.Max <= 0 {
		return 0
	}
	return int32(min((f.Entries*100+f.Max/2)/f.Max, 1<<30))
}

// Pressed reports whether a table with a number of entries, of at most so many, is under
// pressure, given whether it was before. A table without a limit never is.
func Pressed(before bool, entries, most int64) bool {
	if before {
		return most > 0 && entries*100 > most*pressureTo
	}
	return most > 0 && entries*100 >= most*PressureFrom
}

// ErrUntracked means that the kernel has no connection tracking, or not yet.
var ErrUntracked = errors.New("the kernel tracks no connections")

// Statistics reads the statistics of the table. With an error other than ErrUntracked, all but the
// counters may be set.
func (k *System) Statistics() (Statistics, error) {
	var f Statistics
	for _, file := range []struct {
		name string
		to   *int64
	}{{sysctlMax, &f.Max}, {sysctlCount, &f.Entries}, {sysctlBuckets, &f.Buckets}} {
		value, err := k.read(file.name)
		switch {
		case file.name == sysctlMax && errors.Is(err, fs.ErrNotExist):
			return Statistics{}, ErrUntracked
		case err != nil:
			return Statistics{}, err
		}
		*file.to = value
	}
	var err error
	if f.Counters, err = k.counters(); err != nil {
		return f, fmt.Errorf("reading the counters of connection tracking: %w", err)
	}
	return f, nil
}

// Metrics are the metrics of the connection tracking table.
type Metrics struct{ shown atomic.Pointer[Statistics] }

// NewMetrics registers the metrics of the connection tracking table.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{}
	m.show(Statistics{})
	factory := promauto.With(registry)
	gauge := func(name, help string, value func(*Statistics) int64) {
		factory.NewGaugeFunc(prometheus.GaugeOpts{Name: "nodeproxy_agent_conntrack_" + name, Help: help},
			func() float64 { return float64(value(m.shown.Load())) })
	}
	counter := func(name, help string, value func(*Statistics) int64) {
		factory.NewCounterFunc(prometheus.CounterOpts{Name: "nodeproxy_agent_conntrack_" + name, Help: help},
			func() float64 { return float64(value(m.shown.Load())) })
	}
	gauge("entries", "Connections in the connection tracking table, at most some seconds ago; 0 also where there is none.", func(f *Statistics) int64 { return f.Entries })
	gauge("max_entries", "How many connections the connection tracking table takes; 0: any number, or there is none.", func(f *Statistics) int64 { return f.Max })
	gauge("buckets", "Size of the hash table of the connection tracking table.", func(f *Statistics) int64 { return f.Buckets })
	counter("insert_failed_total", "Connections that could not be entered into the connection tracking table, as the kernel counts them.", func(f *Statistics) int64 { return f.InsertFailed })
	counter("dropped_packets_total", "Packets dropped because the connection tracking table was full, as the kernel counts them.", func(f *Statistics) int64 { return f.Drop })
	counter("early_dropped_total", "Unanswered connections evicted from the full connection tracking table, as the kernel counts them.", func(f *Statistics) int64 { return f.EarlyDrop })
	return m
}

func (m *Metrics) show(f Statistics) { m.shown.Store(&f) }
