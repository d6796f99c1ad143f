package nodes

import (
	"maps"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/pacing"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// of are so many bytes of a namespace that has changed.
func of(bytes int, namespaces ...string) map[string]int {
	out := map[string]int{}
	for _, namespace := range namespaces {
		out[namespace] = bytes
	}
	return out
}

// A node that changes rarely is written at once, whatever its size.
func TestNodesThatChangeRarelyDoNotWait(t *testing.T) {
	p, now := newNodePace(), controllertest.Noon
	for _, bytes := range []int{1000, 1 << 20, 60 << 10, 1 << 20, 1000} {
		if wait := p.wait("n1", bytes, of(bytes, "shop"), now); wait != 0 {
			t.Errorf("%d bytes after ten seconds wait %s", bytes, wait)
		}
		p.wrote("n1", bytes, now)
		now = now.Add(10 * time.Second)
	}
}

// Small nodes that change at once after each other do not wait either, as long as the shares last;
// large ones wait by their size, and are not rendered all the time meanwhile.
func TestNodesWaitBySize(t *testing.T) {
	p := newNodePace()
	for i := range 100 {
		if wait := p.wait("n1", 10<<10, of(10<<10, "shop"), controllertest.Noon); wait != 0 {
			t.Fatalf("write %d of 10 KiB waits %s", i, wait)
		}
		p.wrote("n1", 10<<10, controllertest.Noon)
	}
	p.wait("large", 1<<20, of(1<<20, "shop"), controllertest.Noon)
	p.wrote("large", 1<<20, controllertest.Noon)
	if wait := p.waiting("large", controllertest.Noon); wait != 0 {
		t.Errorf("after a write it is not rendered for %s", wait)
	}
	for _, bytes := range []int{1 << 20, 1000} {
		if wait := p.wait("large", bytes, of(bytes, "other"), controllertest.Noon); wait != time.Second {
			t.Errorf("%d bytes after 1 MiB wait %s", bytes, wait)
		}
		if wait := p.waiting("large", controllertest.Noon.Add(nodeRenderPause/4)); wait != nodeRenderPause*3/4 {
			t.Errorf("it is not rendered for %s more", wait)
		}
	}
	if wait := p.wait("large", 1000, of(1000, "other"), controllertest.Noon.Add(time.Second)); wait != 0 || p.waiting("large", controllertest.Noon) != 0 {
		t.Errorf("1 s later it waits %s", wait)
	}
}

const attackStep = 20 * time.Millisecond

// attack has one namespace change nodes of a size all the time, and returns how many bytes were
// written in a time, and the longest time from a change of a node to its write.
func attack(p *nodePace, nodes, bytes int, lasting time.Duration, each func(now time.Time)) (written int, longest time.Duration) {
	ask, last := make([]time.Time, nodes), make([]time.Time, nodes)
	end := controllertest.Noon.Add(lasting)
	for now := controllertest.Noon; now.Before(end); now = now.Add(attackStep) {
		each(now)
		for i := range nodes {
			if last[i].IsZero() {
				last[i] = controllertest.Noon
			}
			longest = max(longest, now.Sub(last[i]))
			if now.Before(ask[i]) {
				continue
			}
			wait := p.wait(attacked(i), bytes, of(bytes, "attacker"), now)
			if ask[i] = now.Add(wait); wait > 0 {
				continue
			}
			p.wrote(attacked(i), bytes, now)
			written += bytes
			last[i] = now
		}
	}
	return written, longest
}

func attacked(i int) string { return "attacked-" + strconv.Itoa(i) }

// However many nodes a namespace changes all the time, whatever their size: the bytes of a second
// are bounded, and each node waits at most for its own bytes at its own share. Changes of another
// namespace wait for what was written of their node just now, and nothing else.
func TestNamespaceThatChangesNodesAllTheTime(t *testing.T) {
	const nodes, seconds = 1000, 120
	for _, bytes := range []int{100, 20 << 10, 100 << 10, 160 << 10} {
		cost := max(bytes, leastNodeBytes)
		// Bytes at the rates, what both kinds of buckets have at the start, and a write more of each.
		most := (seconds+int(nodesBurst.Seconds()))*nodesShare + cost + nodes*(seconds*nodeShare+int(nodeBurst.Seconds())*nodeShare+cost)
		most = most / cost * bytes
		p := newNodePace()
		changed := controllertest.Noon // when the other namespace changed something that is not written
		var waited time.Duration
		written, longest := attack(p, nodes, bytes, seconds*time.Second, func(now time.Time) {
			if now.Before(changed) {
				return
			}
			node := attacked(int(now.Sub(controllertest.Noon)/time.Second) % nodes)
			if p.wait(node, bytes, of(bytes, "attacker", "other"), now) > 0 {
				waited = max(waited, now.Sub(changed))
				return
			}
			p.wrote(node, bytes, now)
			changed = now.Add(time.Second).Truncate(time.Second)
		})
		if written > most || written < most*8/10 {
			t.Errorf("%d bytes: %d written in %d s, at most %d may be", bytes, written, seconds, most)
		}
		if bound := pacing.TimeFor(cost, nodeShare) + render.NodePace(bytes); longest > bound+attackStep {
			t.Errorf("%d bytes: a change waited %s, at most %s it may", bytes, longest, bound)
		}
		if bound := render.NodePace(bytes); waited > bound+attackStep {
			t.Errorf("%d bytes: a change of another namespace waited %s, want at most %s", bytes, waited, bound)
		}
	}
}

// A namespace that changes all nodes has each change written within what docs/security.md promises.
func TestChangesOfAllNodesArrive(t *testing.T) {
	const nodes, bytes = 1000, v1alpha1.MaxNamespaceLocalBytes + 30<<10
	p := newNodePace()
	_, longest := attack(p, nodes, bytes, time.Minute, func(time.Time) {})
	if bound := 20*time.Second + time.Second/2; longest > bound {
		t.Errorf("a change waited %s, docs/security.md promises about %s", longest, bound)
	}
}

// What a node has taken of the share of a namespace and is not written on its account is given back.
func TestNodesGiveBack(t *testing.T) {
	p := newNodePace()
	p.namespaces.Of("shop", controllertest.Noon).Next = controllertest.Noon // its burst is used up
	waits := func(name string, changed ...string) time.Duration {
		p.of(name).own.Next = controllertest.Noon.Add(time.Hour) // its own share is used up
		return p.wait(name, nodesShare/2, of(nodesShare/2, changed...), controllertest.Noon)
	}
	expect := func(when string, want time.Duration) {
		t.Helper()
		got := waits(when, "shop")
		if got != want {
			t.Errorf("%s: the next one waits %s, want %s", when, got, want)
		}
		p.forget(when)
	}
	if a, b := waits("a", "shop"), waits("b", "shop"); a != 0 || b != 500*time.Millisecond {
		t.Fatalf("the first two wait %s, %s", a, b)
	}
	expect("both have taken", time.Second)
	waits("b", "other")
	expect("b has changed back", 500*time.Millisecond)
	waits("c", "shop")
	p.settled("c")
	expect("c has settled", 500*time.Millisecond)
	waits("d", "shop", "other")
	p.wrote("d", nodesShare/2, controllertest.Noon)
	expect("d was written on the other's account", 500*time.Millisecond)
	p.wrote("a", nodesShare/8, controllertest.Noon)
	expect("a has taken more than it wrote", 125*time.Millisecond)
	if len(p.nodes) != 4 {
		t.Errorf("%d nodes are remembered", len(p.nodes))
	}
	if d := p.nodes["d"]; len(d.claims) > 0 {
		t.Errorf("d still has claims: %v", d.claims)
	}
}

// A namespace whose nodes have large objects of others pays for little of these.
func TestOthersBytesCountLittle(t *testing.T) {
	const nodes, bytes, its = 100, v1alpha1.MaxNodeLocalBytes, 1000
	p := newNodePace()
	for i := range nodes {
		p.of(attacked(i)).own.Next = controllertest.Noon.Add(time.Hour) // others have used up its own share
		if wait := p.wait(attacked(i), bytes, of(its, "victim"), controllertest.Noon); wait > 0 {
			t.Fatalf("node %d waits %s", i, wait)
		}
		p.wrote(attacked(i), bytes, controllertest.Noon)
	}
}

// What waits is written sooner if what it waits for is given back.
func TestClaimsMoveForward(t *testing.T) {
	b := pacing.Bucket{Rate: 1000, Burst: time.Second, Next: controllertest.Noon}
	var first, second pacing.Claim
	b.Wait(&first, 1000, controllertest.Noon)
	if wait := b.Wait(&second, 500, controllertest.Noon); wait != time.Second {
		t.Errorf("behind another it waits %s", wait)
	}
	b.GiveBack(&first)
	if wait := b.Wait(&second, 500, controllertest.Noon); wait != 0 {
		t.Errorf("then it waits %s", wait)
	}
}

func TestChangedNamespaces(t *testing.T) {
	local := func(namespace, name, endpoint string) v1alpha1.ServiceLocalEndpoints {
		return v1alpha1.ServiceLocalEndpoints{Namespace: namespace, Name: name, Ports: []v1alpha1.PortLocalEndpoints{{Protocol: "TCP", Endpoints: []string{endpoint}}}}
	}
	before := []v1alpha1.ServiceLocalEndpoints{local("changed", "s", "10.0.0.1:80"), local("gone", "s", "10.0.0.2:80"), local("less", "s", "10.0.0.3:80"), local("less", "t", "10.0.0.3:80"), local("same", "s", "10.0.0.4:80")}
	after := []v1alpha1.ServiceLocalEndpoints{local("changed", "s", "10.0.0.9:80"), local("less", "s", "10.0.0.3:80"), local("new", "s", "10.0.0.5:80"), local("same", "s", "10.0.0.4:80")}
	want := map[string]int{"changed": after[0].MaxBytes(), "gone": 0, "less": after[1].MaxBytes(), "new": after[2].MaxBytes()}
	if got := changedNamespaces(before, after); !maps.Equal(got, want) {
		t.Errorf("changed are %v, want %v", got, want)
	}
	if got := changedNamespaces(nil, before[:1]); len(got) != 1 || got["changed"] == 0 {
		t.Errorf("new are %v", got)
	}
}

// A new term forgets nodes that went while another controller led.
func TestNodePaceRetainsExistingNodes(t *testing.T) {
	p := newNodePace()
	for _, node := range []string{"gone", "stays"} {
		p.of(node)
	}
	p.retain([]reconcile.Request{nodeRequest("stays"), nodeRequest("new")})
	if len(p.nodes) != 1 || p.nodes["stays"] == nil {
		t.Errorf("%d nodes are remembered, want the existing one", len(p.nodes))
	}
}

// TestOwnUpdates do not enqueue their node, but those of others do.
func TestOwnUpdates(t *testing.T) {
	p := newNodePace()
	rules := func(generation int64, annotations map[string]string) *v1alpha1.NodeProxyRules {
		return &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "n1", Generation: generation, Annotations: annotations}}
	}
	marked := map[string]string{v1alpha1.AnnotationNodeAbsentSince: "x"}
	if p.isOwn(rules(1, nil), rules(2, nil)) {
		t.Error("before any write an update counts as ours")
	}
	p.writes(rules(2, nil))
	for name, c := range map[string]struct {
		before, after *v1alpha1.NodeProxyRules
		own           bool
	}{
		"ours":                        {rules(2, nil), rules(3, nil), true},
		"of others, after ours":       {rules(3, nil), rules(4, nil), false},
		"of annotations, after ours":  {rules(3, nil), rules(3, marked), false},
		"ours, and of an annotation":  {rules(2, nil), rules(3, marked), false},
		"of others, before ours":      {rules(1, nil), rules(2, nil), false},
		"several, of which ours is 1": {rules(2, nil), rules(5, nil), false},
	} {
		if own := p.isOwn(c.before, c.after); own != c.own {
			t.Errorf("%s: own %t", name, own)
		}
	}
}
