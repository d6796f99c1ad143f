package desired

import (
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

func TestLasting(t *testing.T) {
	finding := func(key string) dataplane.Finding {
		return dataplane.Finding{Service: agenttest.Name(key[:1]), Key: key, Text: "chain of " + key}
	}
	unowned := dataplane.Finding{Key: "-", Text: "rule too many"}
	type pass struct {
		at      time.Duration
		changed []string
		found   []dataplane.Finding
		counted string // keys, joined
		waiting bool
	}
	a := []dataplane.Finding{finding("a1")}
	for _, tt := range []struct {
		name   string
		passes []pass
	}{
		{"nothing", []pass{{found: nil}}},
		{"it lasts for 2 s", []pass{{found: a, waiting: true}, {at: 1900 * time.Millisecond, found: a, waiting: true}, {at: 2 * time.Second, found: a, counted: "a1"}, {at: time.Minute, found: a, counted: "a1"}}},
		{"it goes in between", []pass{{found: a, waiting: true}, {at: 2 * time.Second}, {at: 4 * time.Second, found: a, waiting: true}}},
		{"it becomes another one", []pass{{found: a, waiting: true}, {at: 2 * time.Second, found: []dataplane.Finding{finding("a2")}, waiting: true}, {at: 4 * time.Second, found: []dataplane.Finding{finding("a2")}, counted: "a2"}}},
		{"its Service has just changed", []pass{{}, {at: time.Second, changed: []string{"a"}, found: a, waiting: true},
			{at: 3 * time.Second, found: a, waiting: true}, {at: 5 * time.Second, found: a, waiting: true}, {at: 6 * time.Second, found: a, counted: "a1"}}},
		{"another Service has just changed", []pass{{}, {at: time.Second, changed: []string{"b"}, found: a, waiting: true}, {at: 3 * time.Second, found: a, counted: "a1"}}},
		{"a Service that keeps changing counts in the end", []pass{{}, {at: time.Second, changed: []string{"a"}, found: a, waiting: true},
			{at: 3 * time.Second, changed: []string{"a"}, found: a, waiting: true}, {at: 6 * time.Second, changed: []string{"a"}, found: a, counted: "a1"}}},
		{"whose it is is not known, and some Service has just changed", []pass{{}, {at: time.Second, changed: []string{"b"}, found: []dataplane.Finding{unowned}, waiting: true},
			{at: 3 * time.Second, found: []dataplane.Finding{unowned}, waiting: true}, {at: 6 * time.Second, found: []dataplane.Finding{unowned}, counted: "-"}}},
		{"what is there at the start has not just changed", []pass{{changed: []string{"a"}, found: a, waiting: true}, {at: 2 * time.Second, found: a, counted: "a1"}}},
		{"one lasts, one does not", []pass{{found: a, waiting: true}, {at: 2 * time.Second, found: append([]dataplane.Finding{finding("b1")}, a...), counted: "a1", waiting: true}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d auditor
			for _, p := range tt.passes {
				changed := map[dataplane.ServiceName]struct{}{}
				for _, c := range p.changed {
					changed[agenttest.Name(c)] = struct{}{}
				}
				now := agenttest.Epoch.Add(p.at)
				d.change(changed, now)
				lasting, waiting := d.lasting(p.found, now)
				var keys []string
				for _, f := range lasting {
					keys = append(keys, f.Key)
				}
				if got := strings.Join(keys, " "); got != p.counted || waiting != p.waiting {
					t.Errorf("after %s: counted %q, waiting %v; want %q, %v", p.at, got, waiting, p.counted, p.waiting)
				}
			}
		})
	}
}
