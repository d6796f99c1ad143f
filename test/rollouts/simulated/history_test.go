package simulated

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// moment is one write, as a watch has reported it.
type moment struct {
	version uint64 // the resourceVersion, which one etcd counts for all kinds
	at      time.Time
	object  client.Object
	gone    bool
}

// history is all that was written, and what there is now.
type history struct {
	mu      sync.Mutex
	moments []moment
	now     map[string]client.Object
	byHand  map[uint64]bool // writes to rendered objects by the test
	more    chan struct{}   // closed when there is more
}

func newHistory() *history {
	return &history{now: map[string]client.Object{}, byHand: map[uint64]bool{}, more: make(chan struct{})}
}

func key(object client.Object) string { return fmt.Sprintf("%T %s", object, object.GetName()) }

func version(object client.Object) uint64 {
	n, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		panic("a resourceVersion that is no number: " + object.GetResourceVersion())
	}
	return n
}

func (h *history) add(object client.Object, gone bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moments = append(h.moments, moment{version: version(object), at: time.Now(), object: object, gone: gone})
	if gone {
		delete(h.now, key(object))
	} else {
		h.now[key(object)] = object
	}
	close(h.more)
	h.more = make(chan struct{})
}

// byHandOf notes that the test itself writes a version of a rendered object.
func (h *history) byHandOf(write func() client.Object) {
	written := version(write())
	h.mu.Lock()
	defer h.mu.Unlock()
	h.byHand[written] = true
}

// record adds what a watch over one kind reports until ctx ends.
func (h *history) record(ctx context.Context, t *testing.T, c client.WithWatch, kind client.ObjectList, done *sync.WaitGroup) {
	t.Helper()
	w, err := c.Watch(ctx, kind)
	if err != nil {
		t.Fatalf("watching %T: %v", kind, err)
	}
	done.Go(func() {
		defer w.Stop()
		for event := range w.ResultChan() {
			object, ok := event.Object.(client.Object)
			if ctx.Err() != nil {
				return
			}
			if !ok || event.Type == watch.Error {
				t.Errorf("watching %T: %v", kind, event.Object)
				return
			}
			h.add(object, event.Type == watch.Deleted)
		}
		if ctx.Err() == nil {
			t.Errorf("the watch over %T has ended", kind)
		}
	})
}

// all returns the moments in the order in which they were written.
func (h *history) all() (moments []moment, byHand map[uint64]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	moments = slices.Clone(h.moments)
	slices.SortStableFunc(moments, func(a, b moment) int { return cmp.Compare(a.version, b.version) })
	byHand = map[uint64]bool{}
	for v := range h.byHand {
		byHand[v] = true
	}
	return moments, byHand
}

// current is what there is of a kind now, by name.
func current[T client.Object](h *history) []T {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []T
	for _, object := range h.now {
		if o, ok := object.(T); ok {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b T) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return out
}

// find returns what there is of a name now; nil: nothing.
func find[T client.Object](h *history, name string) (found T) {
	for _, o := range current[T](h) {
		if o.GetName() == name {
			return o
		}
	}
	return found
}

// writes are the moments of rules since a version, but for those that changed nothing
// but the status, by node.
func (h *history) writes(since uint64) map[string]int {
	moments, _ := h.all()
	before := map[string]*v1alpha1.NodeProxyRules{}
	out := map[string]int{}
	for _, m := range moments {
		rules, ok := m.object.(*v1alpha1.NodeProxyRules)
		if !ok {
			continue
		}
		former := before[rules.Name]
		before[rules.Name] = rules
		if m.version <= since || former != nil && !m.gone && former.Generation == rules.Generation &&
			mapsEqual(former.Annotations, rules.Annotations) {
			continue
		}
		out[rules.Name]++
	}
	return out
}

func mapsEqual(a, b map[string]string) bool {
	for k, v := range a {
		if w, found := b[k]; !found || v != w {
			return false
		}
	}
	return len(a) == len(b)
}

// latest is the newest version that is recorded.
func (h *history) latest() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	newest := uint64(0)
	for _, m := range h.moments {
		newest = max(newest, m.version)
	}
	return newest
}

// await waits until something holds, which is looked at whenever something was
// written.
func (h *history) await(t *testing.T, what string, within time.Duration, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		h.mu.Lock()
		more := h.more
		h.mu.Unlock()
		if holds() {
			return
		}
		select {
		case <-more:
		case <-deadline.C:
			t.Fatalf("%s within %s\n%s", what, within, h.summary())
		}
	}
}

// summary states how things are, for who reads that a test has failed.
func (h *history) summary() string {
	out := ""
	for _, p := range current[*v1alpha1.NodeProxyPolicy](h) {
		out += fmt.Sprintf("policy %s generation %d, status of %d: %d nodes, %d updated, %d programmed\n",
			p.Name, p.Generation, p.Status.ObservedGeneration, p.Status.Nodes, p.Status.Updated, p.Status.Programmed)
		for _, c := range p.Status.Conditions {
			out += fmt.Sprintf("  %s %s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
		for _, e := range p.Status.Examples {
			out += fmt.Sprintf("  %s %s: %s\n", e.Name, e.Reason, e.Message)
		}
	}
	carried := map[string]int{}
	for _, rules := range current[*v1alpha1.NodeProxyRules](h) {
		carried[rules.Spec.SettingsRevision]++
		if !available(rules) {
			out += fmt.Sprintf("%s carries %s by %q of %s, applied %s, %s\n", rules.Name, rules.Spec.SettingsRevision, rules.Spec.Policies,
				rules.Annotations[v1alpha1.AnnotationRollout], rules.Status.SettingsRevision, programmedReason(rules))
		}
	}
	return out + fmt.Sprintf("settings carried: %v; %d Nodes\n", carried, len(current[*corev1.Node](h)))
}
