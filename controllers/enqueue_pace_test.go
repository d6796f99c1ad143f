package controllers

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// recordingQueue notes after how long each node is due.
type recordingQueue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	added map[string][]time.Duration
}

func (q *recordingQueue) AddAfter(r reconcile.Request, after time.Duration) {
	q.added[r.Name] = append(q.added[r.Name], after)
}

// TestNamespaceThatNamesAllNodes again and again has them rendered at once as long as it has
// something left, and then one after the other; those of another namespace are rendered at once.
func TestNamespaceThatNamesAllNodes(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	p := newEnqueuePace(clk)
	q := &recordingQueue{}
	enqueue := func(namespace string, nodes ...string) (atOnce, later int, longest time.Duration) {
		q.added = map[string][]time.Duration{}
		p.enqueue(q, namespace, nodes)
		for _, list := range q.added {
			for _, after := range list {
				if after == 0 {
					atOnce++
				} else {
					later++
					longest = max(longest, after)
				}
			}
		}
		return atOnce, later, longest
	}
	var nodes []string
	for i := range 400 {
		nodes = append(nodes, fmt.Sprintf("node-%d", i))
	}
	for second, want := range []struct {
		atOnce, later int
		longest       time.Duration
	}{
		{400, 0, 0}, {400, 0, 0},
		{241, 159, 8 * time.Second}, // 1,000, 20 for each second, and one
		{0, 261, 20 * time.Second},  // those that still wait do so once
	} {
		atOnce, later, longest := enqueue("attacker", nodes...)
		if atOnce != want.atOnce || later != want.later || longest > want.longest {
			t.Errorf("second %d: %d at once, %d later, the last one after %s; want %+v", second, atOnce, later, longest, want)
		}
		clk.SetTime(clk.Now().Add(time.Second))
	}
	if atOnce, later, _ := enqueue("victim", "node-7"); atOnce != 1 || later != 0 {
		t.Errorf("another namespace: %d at once, %d later", atOnce, later)
	}
	clk.SetTime(clk.Now().Add(10 * time.Minute))
	if enqueue("victim", "node-7"); len(p.namespaces) != 1 {
		t.Errorf("%d namespaces are remembered, want the one that is not as new", len(p.namespaces))
	}
}
