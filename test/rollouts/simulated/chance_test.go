package simulated

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// seedVariable repeats what chance has done, stepsVariable has it do more.
	seedVariable, stepsVariable = "SIMULATED_SEED", "SIMULATED_STEPS"
	fewSteps                    = 25
)

// number reads a variable of the environment.
func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// TestWhateverHappens: policies, nodes, agents and controllers change by chance, one thing
// after the other while settings are on their way. In the end the desired state comes
// about; what must never happen is looked for in the record, as in every test here.
func TestWhateverHappens(t *testing.T) {
	t.Parallel()
	seed := number(t, seedVariable, int(time.Now().UnixNano()%1e6))
	t.Logf("repeat it with %s=%d", seedVariable, seed)
	w := newWorld(t)
	c := &chance{world: w, dice: rand.New(rand.NewPCG(uint64(seed), 0)), next: size}
	for range number(t, stepsVariable, fewSteps) {
		what := c.step()
		t.Log(what)
		since := w.history.latest()
		c.settle(since, c.dice.IntN(6))
	}
	c.repair()
	for _, p := range current[*v1alpha1.NodeProxyPolicy](w.history) {
		w.await("policy "+p.Name+" is applied", func() bool {
			reason := w.ready(p.Name)
			return reason == v1alpha1.ReasonApplied || reason == v1alpha1.ReasonNothingSelected
		})
	}
	w.await("every node has applied its settings", func() bool {
		for _, n := range current[*corev1.Node](w.history) {
			if !available(w.rules(n.Name)) {
				return false
			}
		}
		return true
	})
	w.nothingIsWritten()
	w.settled()
}

// chance changes a world.
type chance struct {
	*world
	dice *rand.Rand
	next int // number of the next node
}

// settle waits until so many nodes have been given something since, or nothing goes on.
func (c *chance) settle(since uint64, n int) {
	deadline := time.NewTimer(500 * time.Millisecond)
	defer deadline.Stop()
	for len(c.grants(since)) < n {
		c.history.mu.Lock()
		more := c.history.more
		c.history.mu.Unlock()
		select {
		case <-more:
		case <-deadline.C:
			return
		}
	}
}

// someNode is the name of a Node that there is.
func (c *chance) someNode() string {
	nodes := current[*corev1.Node](c.history)
	return nodes[c.dice.IntN(len(nodes))].Name
}

// step changes something, and states what.
func (c *chance) step() string {
	name := c.someNode()
	switch c.dice.IntN(15) {
	default:
		return c.changePolicy()
	case 3:
		c.controller.kill()
		c.startController()
		return "the controller was killed"
	case 1, 4:
		b := []behavior{with(v1alpha1.ModeIPVS, rejects), always(breaks), always(rejectsOne), always(silent)}[c.dice.IntN(4)]
		c.fleet.behave(b, name)
		return name + " does not do well any more"
	case 5:
		c.fleet.behave(slow(time.Duration(c.dice.IntN(800))*time.Millisecond), name)
		return name + " is slow"
	case 6:
		c.fleet.behave(always(works), name)
		return name + " does well"
	case 7:
		added := nodeName(c.next)
		c.next++
		c.addNode(added, poolOf(c.dice.IntN(size)), c.dice.IntN(3))
		return added + " was added"
	case 8:
		c.delete(node(name))
		c.await("the Node is gone", func() bool { return find[*corev1.Node](c.history, name) == nil })
		if c.dice.IntN(2) == 0 {
			c.fleet.vanish(name)
			return name + " was removed"
		}
		c.addNode(name, poolOf(c.dice.IntN(size)), c.dice.IntN(3))
		return name + " was replaced"
	case 9:
		pool := poolOf(c.dice.IntN(size))
		edit(c.world, node(name), func(n *corev1.Node) { n.Labels["pool"] = pool })
		return name + " is in pool " + pool
	case 10:
		edit(c.world, node(name), func(n *corev1.Node) { n.Spec.Unschedulable = !n.Spec.Unschedulable })
		return name + " was cordoned, or is not any more"
	case 11:
		most := 1 + c.dice.IntN(5)
		edit(c.world, &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}, func(np *v1alpha1.NodeProxy) {
			np.Spec.Rollout = &v1alpha1.RolloutSettings{MaxUnavailable: new(intstr.FromInt(most))}
			np.Spec.Settings = &v1alpha1.WrittenSettings{Sync: &v1alpha1.SyncSettings{VerifyIntervalSeconds: new(int32(30 + c.dice.IntN(60)))}}
		})
		return "NodeProxy was changed"
	}
}

// changePolicy adds, edits or removes one of three policies.
func (c *chance) changePolicy() string {
	name := fmt.Sprintf("policy-%d", c.dice.IntN(3))
	most := []string{"1", "3", "7", "10%", "30%"}[c.dice.IntN(5)]
	change := func(p *v1alpha1.NodeProxyPolicy) {
		p.Spec.Priority = new(int32(c.dice.IntN(3)))
		p.Spec.NodeSelector.MatchLabels = []map[string]string{{"pool": "edge"}, {"pool": "core"}, {corev1.LabelTopologyZone: "a"}, {}}[c.dice.IntN(4)]
		p.Spec.Settings.Mode = []*v1alpha1.ProxyMode{nil, new(v1alpha1.ModeIPVS), new(v1alpha1.ModeIPTables)}[c.dice.IntN(3)]
		p.Spec.Settings.IPVS.Scheduler = new([]string{"lc", "sh", "rr"}[c.dice.IntN(3)])
		p.Spec.Rollout = &v1alpha1.RolloutSettings{
			MaxUnavailable: new(intstr.Parse(most)), Paused: new(c.dice.IntN(6) == 0), ProgressDeadlineSeconds: new(int32(1 + c.dice.IntN(5))),
		}
	}
	stored := find[*v1alpha1.NodeProxyPolicy](c.history, name)
	switch {
	case stored == nil:
		p := edgePool(most)
		p.Name = name
		change(p)
		c.create(p)
		c.await("the policy is there", func() bool { return find[*v1alpha1.NodeProxyPolicy](c.history, name) != nil })
		return name + " was added"
	case c.dice.IntN(3) == 0:
		c.delete(stored)
		c.await("the policy is gone", func() bool { return find[*v1alpha1.NodeProxyPolicy](c.history, name) == nil })
		return name + " was removed"
	default:
		edit(c.world, &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}, change)
		return name + " was edited"
	}
}

// repair makes all nodes healthy and resumes what is paused.
func (c *chance) repair() {
	c.t.Helper()
	for _, n := range current[*corev1.Node](c.history) {
		c.fleet.behave(always(works), n.Name)
	}
	for _, p := range current[*v1alpha1.NodeProxyPolicy](c.history) {
		edit(c.world, &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: p.Name}}, func(p *v1alpha1.NodeProxyPolicy) {
			p.Spec.Rollout.Paused, p.Spec.Rollout.MaxUnavailable = nil, new(intstr.FromString("30%"))
			p.Spec.Rollout.ProgressDeadlineSeconds = nil
		})
	}
	edit(c.world, &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}, func(np *v1alpha1.NodeProxy) {
		np.Spec.Rollout = &v1alpha1.RolloutSettings{MaxUnavailable: new(intstr.FromString("30%"))}
	})
}
