package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var start = time.Date(2030, 1, 4, 16, 0, 0, 0, time.UTC)

const deadline = 10 * time.Minute

func budget(most string) Budget {
	return Budget{Generation: 1, MaxUnavailable: intstr.Parse(most), Deadline: deadline}
}

// nodes are so many, in zones a, b and c in turn, which carry "old", want "new", and do
// what they carry.
func nodes(n int) []Node {
	var out []Node
	for i := range n {
		out = append(out, Node{
			Name: fmt.Sprintf("node-%02d", i), Zone: string(rune('a' + i%3)), Selected: []string{"", "edge"},
			Actual: "old", Desired: "new", Causes: []string{"edge"}, Applied: true, Programmed: true,
		})
	}
	return out
}

// given has a node carry a change by the first generation of edge since some time.
func (n *Node) given(revision string, ago time.Duration, applied bool) {
	n.Actual, n.By, n.Given, n.Applied = revision, []v1alpha1.Cause{{Name: "edge", Generation: 1}}, start.Add(-ago), applied
}

func TestDecide(t *testing.T) {
	tests := []struct {
		name   string
		nodes  int              // 6 unless given
		but    func(all []Node) // changes them
		edge   Budget
		want   string // granted
		missed string
		counts string // nodes, updated, programmed, unavailable/max, pending
		next   time.Duration
	}{
		{name: "one at a time", edge: budget("1"), want: "node-00", counts: "6 1 0 1/1 5", next: deadline},
		{name: "zones in turn", nodes: 9, edge: budget("5"), want: "node-00 node-01 node-02 node-03 node-04", counts: "9 5 0 5/5 4", next: deadline},
		{name: "a percentage, rounded down", nodes: 9, edge: budget("30%"), want: "node-00 node-01", counts: "9 2 0 2/2 7", next: deadline},
		{name: "but one at least", nodes: 9, edge: budget("1%"), want: "node-00", counts: "9 1 0 1/1 8", next: deadline},
		{
			name: "the next zone", edge: budget("1"), want: "node-01", counts: "6 2 1 1/1 4", next: deadline,
			but: func(all []Node) {
				all[0].given("new", time.Minute, true)
			},
		},
		{
			name: "one is on its way", edge: budget("1"), want: "", counts: "6 1 0 1/1 5", next: deadline - time.Minute,
			but: func(all []Node) {
				all[0].given("new", time.Minute, false)
			},
		},
		{
			name: "applied but not programmed", edge: budget("1"), want: "", counts: "6 1 0 1/1 5",
			but: func(all []Node) {
				all[0].given("new", time.Hour, true)
				all[0].Programmed = false
			},
		},
		{
			name: "one that is not available comes first", edge: budget("1"), want: "node-05", counts: "6 1 0 1/1 5", next: deadline,
			but: func(all []Node) {
				all[5].Programmed = false
			},
		},
		{
			name: "also where the budget allows others", edge: budget("3"), want: "node-05 node-00 node-01", counts: "6 3 0 3/3 3", next: deadline,
			but: func(all []Node) {
				all[5].Applied = false
			},
		},
		{
			name: "of many that do not answer no more than may be unavailable", edge: budget("2"), want: "node-03 node-04", counts: "6 2 0 3/2 4", next: deadline,
			but: func(all []Node) {
				for i := 3; i < 6; i++ {
					all[i].Programmed = false
				}
			},
		},
		{
			name: "a node misses the deadline", edge: budget("3"), want: "", missed: "node-02", counts: "6 1 0 1/3 5",
			but: func(all []Node) {
				all[2].given("new", deadline, false)
			},
		},
		{
			name: "nodes that miss it are named in order, and the next deadline is the earliest", edge: budget("4"), want: "", missed: "node-01 node-05",
			counts: "6 4 0 4/4 2", next: deadline - 3*time.Minute,
			but: func(all []Node) {
				all[5].given("new", 2*deadline, false)
				all[1].given("new", deadline, false)
				all[2].given("new", 3*time.Minute, false)
				all[3].given("new", time.Minute, false)
			},
		},
		{
			name: "what is given now leaves the earliest deadline as it is", edge: budget("2"), want: "node-01", counts: "6 2 0 2/2 4", next: deadline - time.Minute,
			but: func(all []Node) {
				all[0].given("new", time.Minute, false)
			},
		},
		{
			name: "what is on its way is put right by the same generation", edge: budget("1"), want: "node-03", counts: "6 1 0 1/1 5", next: deadline - time.Minute,
			but: func(all []Node) {
				all[3].given("other", time.Minute, false) // its labels have changed since
			},
		},
		{
			name: "a change without a cause", edge: budget("1"), want: "", counts: "6 0 0 0/1 0",
			but: func(all []Node) {
				for i := range all {
					all[i].Causes = nil
				}
			},
		},
		{
			name: "it was given by an older generation", edge: Budget{Generation: 2, MaxUnavailable: intstr.FromInt32(3), Deadline: deadline},
			want: "node-00 node-01", counts: "6 3 0 3/3 3", next: deadline,
			but: func(all []Node) {
				all[2].given("new", deadline, false)
			},
		},
		{
			name: "the new generation fixes it: it comes first", edge: Budget{Generation: 2, MaxUnavailable: intstr.FromInt32(1), Deadline: deadline},
			want: "node-02", counts: "6 1 0 1/1 5", next: deadline,
			but: func(all []Node) {
				all[2].given("bad", deadline, false)
			},
		},
		{
			name: "it has recovered", edge: budget("1"), want: "node-00", counts: "6 2 1 1/1 4", next: deadline,
			but: func(all []Node) {
				all[2].given("new", deadline, true)
			},
		},
		{
			name: "absent nodes are given it at once, and do not count", edge: budget("1"), want: "node-04 node-00", counts: "5 1 0 1/1 4", next: deadline,
			but: func(all []Node) {
				all[4].Absent, all[4].Applied, all[4].Programmed = true, false, false
			},
		},
		{
			name: "so are idle ones, which count as selected", edge: budget("1"), want: "node-04 node-00", counts: "6 2 0 1/1 4", next: deadline,
			but: func(all []Node) {
				all[4].Idle, all[4].Applied, all[4].Programmed = true, false, false
			},
		},
		{
			name: "idle ones miss no deadline", edge: budget("1"), want: "node-04 node-00", counts: "6 3 0 1/1 3", next: deadline,
			but: func(all []Node) {
				all[4].Idle, all[4].Applied, all[4].Programmed = true, false, false
				all[5].given("new", time.Hour, false)
				all[5].Idle = true
			},
		},
		{
			name: "idle ones need no budget, where there is none", edge: budget("1"), want: "node-04", counts: "6 2 0 1/1 4", next: deadline - time.Minute,
			but: func(all []Node) {
				all[0].given("new", time.Minute, false)
				all[4].Idle, all[4].Applied, all[4].Programmed = true, false, false
			},
		},
		{
			name: "and come before those that are not available", edge: budget("2"), want: "node-05 node-04 node-00", counts: "6 3 0 2/2 3", next: deadline,
			but: func(all []Node) {
				all[4].Applied, all[5].Idle = false, true
			},
		},
		{
			name: "idle ones are not given it while it is paused", edge: Budget{Generation: 1, MaxUnavailable: intstr.FromInt32(1), Deadline: deadline, Paused: true},
			want: "", counts: "6 0 0 0/1 6",
			but: func(all []Node) {
				all[4].Idle, all[4].Applied, all[4].Programmed = true, false, false
			},
		},
		{
			name: "nor once it has stopped", edge: budget("3"), want: "", counts: "6 1 0 1/3 5", missed: "node-00",
			but: func(all []Node) {
				all[0].given("new", time.Hour, false)
				all[4].Idle, all[4].Applied, all[4].Programmed = true, false, false
			},
		},
		{
			name: "of some it is not known what they are to have", edge: budget("1"), want: "node-03", counts: "6 1 0 1/1 3", next: deadline,
			but: func(all []Node) {
				for i := range 2 {
					all[i].Desired, all[i].Causes, all[i].Retains = "old", nil, true
				}
			},
		},
		{
			name: "paused", edge: Budget{Generation: 1, MaxUnavailable: intstr.FromInt32(3), Deadline: deadline, Paused: true}, want: "", counts: "6 0 0 0/3 6",
		},
		{
			name: "each budget must allow it", edge: budget("3"), want: "", counts: "5 1 0 1/3 4",
			but: func(all []Node) {
				for i := range all {
					all[i].Causes = []string{"", "edge"}
				}
				all[1].Actual, all[1].Desired, all[1].Programmed, all[1].Causes = "other", "other", false, nil // NodeProxy allows one
				all[1].Selected = []string{""}
				all[2].Desired, all[2].Programmed, all[2].Causes = "old", false, nil
			},
		},
		{
			name: "a policy that does not select the node any more", edge: budget("1"), want: "node-00", counts: "0 0 0 1/1 5", next: deadline,
			but: func(all []Node) {
				for i := range all {
					all[i].Selected = []string{""}
				}
			},
		},
		{
			name: "nor the others, while one that it does not select any more is on its way", edge: budget("1"), want: "", counts: "0 0 0 1/1 5", next: deadline - time.Minute,
			but: func(all []Node) {
				for i := range all {
					all[i].Selected = []string{""}
				}
				all[0].given("new", time.Minute, false)
			},
		},
		{
			name: "or has applied it and is not programmed", edge: budget("1"), want: "", counts: "0 0 0 1/1 5",
			but: func(all []Node) {
				for i := range all {
					all[i].Selected = []string{""}
				}
				all[0].given("new", time.Minute, true)
				all[0].Programmed = false
			},
		},
		{
			name: "such nodes count where they are unavailable already", edge: budget("3"), want: "node-04 node-05 node-00", counts: "0 0 0 3/3 3", next: deadline,
			but: func(all []Node) {
				for i := range all {
					all[i].Selected = []string{""}
				}
				all[4].Programmed, all[5].Applied = false, false
			},
		},
		{
			name: "but not twice, where they were counted for it", edge: budget("1"), want: "node-04", counts: "0 0 0 1/1 5", next: deadline - time.Minute,
			but: func(all []Node) {
				for i := range all {
					all[i].Selected = []string{""}
				}
				all[4].given("other", time.Minute, false)
			},
		},
		{
			name: "and once, where they were given the change of before", edge: Budget{Generation: 2, MaxUnavailable: intstr.FromInt32(1), Deadline: deadline},
			want: "node-04", counts: "0 0 0 1/1 5", next: deadline,
			but: func(all []Node) {
				for i := range all {
					all[i].Selected = []string{""}
				}
				all[4].given("other", time.Minute, false)
			},
		},
		{
			name: "a budget that there is not", edge: budget("1"), want: "", counts: "6 0 0 0/1 0",
			but: func(all []Node) {
				for i := range all {
					all[i].Causes = []string{"gone"}
				}
			},
		},
		{
			name: "nothing to do", edge: budget("1"), want: "", counts: "6 6 6 0/1 0",
			but: func(all []Node) {
				for i := range all {
					all[i].Actual = "new"
				}
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			all := nodes(cmp.Or(tt.nodes, 6))
			if tt.but != nil {
				tt.but(all)
			}
			d := Decide(start, all, map[string]Budget{"": budget("1"), "edge": tt.edge})
			if got := strings.Join(d.Grants, " "); got != tt.want {
				t.Errorf("granted %q, want %q", got, tt.want)
			}
			s := d.States["edge"]
			if got := strings.Join(s.Missed, " "); got != tt.missed {
				t.Errorf("missed %q, want %q", got, tt.missed)
			}
			if got := fmt.Sprintf("%d %d %d %d/%d %d", s.Nodes, s.Updated, s.Programmed, s.Unavailable, s.Max, s.Pending); got != tt.counts {
				t.Errorf("counts %s, want %s", got, tt.counts)
			}
			var next time.Time
			if tt.next > 0 {
				next = start.Add(tt.next)
			}
			if !d.Next.Equal(next) {
				t.Errorf("next at %s, want %s", d.Next, next)
			}
			slices.Reverse(all)
			if again := Decide(start, all, map[string]Budget{"": budget("1"), "edge": tt.edge}); !slices.Equal(again.Grants, d.Grants) || !slices.Equal(again.States["edge"].Missed, s.Missed) {
				t.Errorf("in another order of nodes %q are granted, and %q missed", again.Grants, again.States["edge"].Missed)
			}
		})
	}
}

func BenchmarkDecide(b *testing.B) {
	all := nodes(1000)
	budgets := map[string]Budget{"": budget("1"), "edge": budget("10%")}
	b.ReportAllocs()
	for b.Loop() {
		Decide(start, all, budgets)
	}
}
