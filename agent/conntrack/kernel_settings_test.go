package conntrack

import (
	"strconv"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestSettingsInANetworkNamespace writes what belongs to the namespace. The size
// of the table does not: nothing changes it, and it is reported.
func TestSettingsInANetworkNamespace(t *testing.T) {
	onRealKernel(t)
	k := NewSystem("")
	before, err := k.read(sysctlMax)
	if err != nil {
		t.Fatal(err)
	}
	settings := sized(1, int32(before)+4096)
	settings.TCPEstablishedTimeoutSeconds, settings.TCPCloseWaitTimeoutSeconds = new(int32(86401)), new(int32(3601))
	settings.UDPTimeoutSeconds, settings.UDPStreamTimeoutSeconds = new(int32(31)), new(int32(121))
	settings.TCPBeLiberal = new(v1alpha1.Enabled)
	got := k.Tune(settings)
	if len(got.Changes) != 5 || !got.Liberal || got.Untracked {
		t.Errorf("got %+v", got)
	}
	if len(got.Unmet) != 1 || !strings.Contains(got.Unmet[0], "nf_conntrack_max is ") || !strings.Contains(got.Unmet[0], "cannot be written in the agent's network namespace") ||
		!strings.Contains(got.Unmet[0], "conntrack.maxPerCore to 0") {
		t.Errorf("unmet %q", got.Unmet)
	}
	for name, want := range map[string]int64{
		sysctlMax: before, sysctlLiberal: 1, "nf_conntrack_tcp_timeout_established": 86401,
		"nf_conntrack_tcp_timeout_close_wait": 3601, "nf_conntrack_udp_timeout": 31, "nf_conntrack_udp_timeout_stream": 121,
	} {
		if value, err := k.read(name); value != want || err != nil {
			t.Errorf("%s is %d (%v), want %d", name, value, err, want)
		}
	}
	if got := k.Tune(settings); len(got.Changes) > 0 {
		t.Errorf("written again: %+v", got.Changes)
	}
	if err := k.sysctls.Write("net/netfilter/nf_conntrack_udp_timeout", "99"); err != nil {
		t.Fatal(err)
	}
	if got := k.Tune(settings); len(got.Changes) != 1 || got.Changes[0].From != 99 || got.Changes[0].To != 31 {
		t.Errorf("a change by another program is not corrected: %+v", got.Changes)
	}
}

// TestStatisticsInANetworkNamespace compares them to what the program conntrack
// reports.
func TestStatisticsInANetworkNamespace(t *testing.T) {
	onRealKernel(t)
	m := NewSystem("")
	empty, err := m.Statistics()
	if err != nil || empty.Entries != 0 || empty.Max == 0 || empty.Buckets == 0 || empty.Counters != (Counters{}) {
		t.Fatalf("in a new namespace: %+v, %v", empty, err)
	}
	fillTCP(t, 20)
	got, err := m.Statistics()
	if err != nil || got.Entries != 20 || got.Max != empty.Max {
		t.Errorf("%+v, %v", got, err)
	}
	var reported int64
	for word := range strings.FieldsSeq(run(t, "conntrack", "-S")) {
		if value, found := strings.CutPrefix(word, "insert_failed="); found {
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			reported += n
		}
	}
	if got.InsertFailed != reported {
		t.Errorf("insertFailed is %d, conntrack -S reports %d", got.InsertFailed, reported)
	}
}

func BenchmarkStatistics(b *testing.B) {
	onRealKernel(b)
	m := NewSystem("")
	for b.Loop() {
		if _, err := m.Statistics(); err != nil {
			b.Fatal(err)
		}
	}
}
