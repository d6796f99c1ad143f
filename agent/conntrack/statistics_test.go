package conntrack

import (
	"errors"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		entries, most int64
		want          int32
	}{{31022, 262144, 12}, {0, 262144, 0}, {262144, 262144, 100}, {300000, 262144, 114}, {5, 0, 0}, {5, 1000, 1}, {4, 1000, 0}} {
		f := Statistics{Entries: tt.entries, Max: tt.most}
		if got := f.UsagePercent(); got != tt.want {
			t.Errorf("%d of %d are %d%%, want %d", tt.entries, tt.most, got, tt.want)
		}
	}
}

func TestPressure(t *testing.T) {
	for _, tt := range []struct {
		before        bool
		entries, most int64
		want          bool
	}{
		{false, 799, 1000, false}, {false, 800, 1000, true}, {false, 2000, 1000, true},
		{true, 701, 1000, true}, {true, 700, 1000, false}, {true, 0, 1000, false},
		{false, 5, 0, false}, {true, 5, 0, false},
	} {
		if got := Pressed(tt.before, tt.entries, tt.most); got != tt.want {
			t.Errorf("before %v, %d of %d: %v, want %v", tt.before, tt.entries, tt.most, got, tt.want)
		}
	}
}

func TestStatisticsFromFiles(t *testing.T) {
	k := newFakeSysctls(t, "0", ofLinux())
	m := k.System
	m.counters = func() (Counters, error) { return Counters{1, 2, 3}, nil }
	want := Statistics{Entries: 1000, Max: 262144, Buckets: 65536, Counters: Counters{InsertFailed: 1, Drop: 2, EarlyDrop: 3}}
	if got, err := m.Statistics(); got != want || err != nil {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	m.counters = func() (Counters, error) { return Counters{}, errors.New("no module") }
	want.Counters = Counters{}
	if got, err := m.Statistics(); got != want || err == nil {
		t.Errorf("got %+v, %v, want %+v and an error", got, err, want)
	}
	if _, err := newFakeSysctls(t, "0", nil).Statistics(); !errors.Is(err, ErrUntracked) {
		t.Errorf("got %v, want %v", err, ErrUntracked)
	}
}

func TestCountersOfAllCPUsAreAdded(t *testing.T) {
	one := headerOf("IPv4")
	for kind, value := range map[uint16]byte{8: 99, attrStatsInsertFailed: 1, attrStatsDrop: 2, attrStatsEarlyDrop: 3} {
		one = nlattr.Append(one, kind, []byte{0, 0, 1, value})
	}
	var c Counters
	c.add(one)
	c.add(one)
	c.add(nlattr.Append(headerOf("IPv4"), attrStatsDrop, []byte{1}))
	c.add([]byte{1})
	c.add(one[:len(one)-2]) // all but the last, whichever that is
	if want := (Counters{InsertFailed: 2 * 257, Drop: 2 * 258, EarlyDrop: 2 * 259}); c.InsertFailed < want.InsertFailed || c.Drop < want.Drop || c.EarlyDrop < want.EarlyDrop {
		t.Errorf("got %+v, want at least %+v", c, want)
	}
}
