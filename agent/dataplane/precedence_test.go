package dataplane_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

func TestPrecedence(t *testing.T) {
	var want []*dataplane.Service
	for i, p := range []dataplane.Precedence{
		{Created: time.Unix(1, 0)}, {Created: time.Unix(2, 0)}, {Created: time.Unix(2, 0)}, {}, {},
		{Retained: true, Created: time.Unix(0, 0)}, {Retained: true, Created: time.Unix(1, 0)}, {Retained: true},
	} {
		want = append(want, &dataplane.Service{Name: dataplane.ServiceName{Namespace: "ns", Name: string(rune('a' + i))}, Precedence: p})
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, (*dataplane.Service).ComparePrecedence)
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("place %d: %s, want %s", i, got[i].Name, want[i].Name)
		}
	}
}
