package desired

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestInventoryAgreement(t *testing.T) {
	start := time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
	i := newInventory()
	agree := func(now time.Time, wantNumber uint64, want bool) {
		t.Helper()
		if number, ok := i.agrees(now); ok != want || (ok && number != wantNumber) {
			t.Errorf("agrees: got %d, %v, want %d, %v", number, ok, wantNumber, want)
		}
	}
	i.setDesired(agenttest.InventoryOf())
	agree(start, 0, false) // before the first list there is no set, not even an empty one
	i.change(start, []string{"a.x"}, nil)
	i.listed = true
	agree(start, 0, false)
	i.setDesired(nil)
	i.change(start, nil, []string{"a.x"})
	agree(start, 0, false) // an unknown inventory agrees with nothing, not with an empty list
	i.setDesired(agenttest.InventoryOf())
	agree(start, 1, true)

	first := i.change(start, []string{"a.x", "a.y"}, nil)
	i.setDesired(agenttest.InventoryOf("a.y", "a.x"))
	agree(start, first, true)
	if again := i.change(start, []string{"a.x"}, nil); again != first {
		t.Errorf("a name that is there already makes set %d out of %d", again, first)
	}

	second := i.change(start.Add(time.Second), nil, []string{"a.x"})
	agree(start.Add(time.Second), first, true) // a former set still agrees
	agree(start.Add(61*time.Second), first, true)
	agree(start.Add(62*time.Second), 0, false) // it is more than a minute old
	i.setDesired(agenttest.InventoryOf("a.y"))
	agree(start.Add(62*time.Second), second, true)

	i.setDesired(&v1alpha1.Inventory{Services: 1, Hash: "nonsense"})
	agree(start.Add(62*time.Second), 0, false)
}

// TestInventoryUnderChurn has an inventory that is always written a little
// after the list has changed, and delivered late.
func TestInventoryUnderChurn(t *testing.T) {
	now := time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
	i := newInventory()
	i.listed = true
	var late []*v1alpha1.Inventory
	var names []string
	agreed := 0
	for n := range 1000 {
		now = now.Add(100 * time.Millisecond)
		name := fmt.Sprintf("ns.svc-%d", n)
		names = append(names, name)
		i.change(now, []string{name}, nil)
		late = append(late, agenttest.InventoryOf(names...))
		if n >= 300 { // 30 s late
			i.setDesired(late[n-300])
			if _, ok := i.agrees(now); ok {
				agreed++
			}
		}
	}
	if agreed != 700 {
		t.Errorf("agreed %d times of 700", agreed)
	}
	if len(i.former) > 610 {
		t.Errorf("%d former sets are remembered, want those of a minute", len(i.former))
	}
}

func TestCompareVersions(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "1", -1}, {"9", "10", -1}, {"10", "9", 1}, {"100", "100", 0},
		{"99999999999999999999999", "100000000000000000000000", -1},
		{"007", "8", -1}, {"x", "1", -1}, {"1", "x", 1},
	} {
		if got := cmp.Compare(CompareVersions(tt.a, tt.b), 0); got != tt.want {
			t.Errorf("CompareVersions(%q, %q): %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
