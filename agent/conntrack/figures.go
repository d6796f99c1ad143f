package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
)

// Pressure begins when the table is this full, in percent, and ends when it is
// no fuller than that.
const (
	PressureFrom = 80
	PressureTo   = 70
)

// Figures are the state of the connection tracking table.
type Figures struct {
	// Entries is the number of connections, Max how many there may be, 0 for any
	// number, and Buckets the size of the hash table.
	Entries, Max, Buckets int64
	Counters
}

// Counters are the kernel's, of all CPUs together, since the network namespace
// was made. They wrap at 2^32 for each CPU.
type Counters struct {
	// InsertFailed counts connections that could not be entered, mostly because
	// another packet had entered the same one.
	InsertFailed int64
	// Drop counts packets dropped because the table was full.
	Drop int64
	// EarlyDrop counts unanswered connections that were evicted to make room.
	EarlyDrop int64
}

// UsagePercent is how full the table is, rounded. Where it has no bounds it is 0.
func (f *Figures) UsagePercent() int32 {
	if f.Max <= 0 {
		return 0
	}
	return int32(min((f.Entries*100+f.Max/2)/f.Max, 1<<30))
}

// Pressed reports whether a table of size most with entries in it is under
// pressure, given whether it was before. One without bounds never is.
func Pressed(before bool, entries, most int64) bool {
	if before {
		return most > 0 && entries*100 > most*PressureTo
	}
	return most > 0 && entries*100 >= most*PressureFrom
}

// ErrUntracked says that the kernel has no connection tracking, or not yet.
var ErrUntracked = errors.New("the kernel tracks no connections")

// System is the connection tracking of the network namespace that its methods
// are called in.
type System struct {
	*Settings
	counters func() (Counters, error)
}

// NewSystem returns that of the running kernel, whose sysctls are in a directory.
// Empty: /proc/sys.
func NewSystem(sysctlFolder string) *System {
	return &System{Settings: NewSettings(sysctlFolder), counters: readCounters}
}

// Figures reads the state of the table. With an error that is not ErrUntracked,
// all but the counters may be set.
func (s *System) Figures() (Figures, error) {
	var f Figures
	for _, file := range []struct {
		name string
		to   *int64
	}{{sysctlMax, &f.Max}, {sysctlCount, &f.Entries}, {sysctlBuckets, &f.Buckets}} {
		value, err := s.read(file.name)
		switch {
		case file.name == sysctlMax && errors.Is(err, fs.ErrNotExist):
			return Figures{}, ErrUntracked
		case err != nil:
			return Figures{}, err
		}
		*file.to = value
	}
	var err error
	if f.Counters, err = s.counters(); err != nil {
		return f, fmt.Errorf("reading the counters of connection tracking: %w", err)
	}
	return f, nil
}
