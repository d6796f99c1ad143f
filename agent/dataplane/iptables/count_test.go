package iptables

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

func TestRulesAreCountedByTable(t *testing.T) {
	f := newFixture(t)
	check := func(when string, written map[string]int, failed bool, result dataplane.Result) {
		t.Helper()
		want := map[string]dataplane.TableCount{}
		for _, table := range []string{"filter", "nat"} { // which hold nothing but ours
			rules := strings.Count("\n"+f.kernel.tables.Save(table), "\n-A ")
			want[table] = dataplane.TableCount{Rules: rules, Written: written[table]}
			if written == nil { // all of them
				want[table] = dataplane.TableCount{Rules: rules, Written: rules}
			}
		}
		if diff := cmp.Diff(want, result.Tables); diff != "" || result.Failed != failed {
			t.Errorf("%s: failed %v, tables (-want +got):\n%s", when, result.Failed, diff)
		}
	}
	services := someServices(3)
	f.set(services...)
	check("first", nil, false, f.apply())
	check("nothing to do", map[string]int{}, false, f.apply())

	// Without endpoints the Service is rejected by one rule in filter.
	empty := *services[0]
	empty.Ports = append([]dataplane.Port(nil), empty.Ports...)
	for i := range empty.Ports {
		empty.Ports[i].Cluster, empty.Ports[i].Local, empty.Ports[i].Available = nil, nil, false
	}
	f.set(&empty)
	result := f.apply()
	check("no endpoints", map[string]int{"filter": result.Tables["filter"].Written}, false, result)
	if result.Tables["filter"].Written == 0 {
		t.Error("no rule is counted as written")
	}

	f.kernel.fail = errors.New("locked")
	f.set(services[0])
	if _, err := f.plane.Apply(t.Context(), f.rules); err == nil {
		t.Fatal("no error")
	}
	f.rules.Full = true
	if result = f.apply(); result.Failed {
		t.Error("what failed before counts")
	}
	f.remove(services[1].Name)
	check("one less", map[string]int{}, false, f.apply())
}
