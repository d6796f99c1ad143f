package parity

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/parity/beside"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// The variables that select the worlds and their number.
const (
	worldsVariable   = "IPVS_PARITY_WORLDS"
	freshVariable    = "IPVS_PARITY_FRESH_WORLDS"
	seedVariable     = "IPVS_PARITY_SEED" // of the first fresh world
	stepsVariable    = "IPVS_PARITY_STEPS"
	deadlineVariable = "IPVS_PARITY_DEADLINE" // seconds
)

// The seeds of the first fixed world. Those of a full run are other worlds, among which
// are some with each of the listed differences.
const (
	firstWorld     = 0
	firstFullWorld = 66
)

// selected returns the worlds to compare. Fresh ones begin with a group.
func selected(t *testing.T) beside.Selection {
	t.Helper()
	first, fixed, fresh := firstWorld, 9, 3
	if beside.Full() {
		first, fixed, fresh = firstFullWorld, 18, 6
	}
	seed := worlds.FirstOfGroup(uint64(beside.Seed(t, seedVariable))) //nolint:gosec // a seed
	return beside.Selection{
		First: first, Fixed: beside.Variable(t, worldsVariable, 0, fixed),
		Seed: int(seed), Fresh: beside.Variable(t, freshVariable, 0, fresh), //nolint:gosec // a seed
	}
}

// TestSideBySide compares the kernel state of kube-proxy and nodeproxy-agent in generated worlds.
func TestSideBySide(t *testing.T) {
	began := time.Now()
	p := use(t)
	t.Logf("the control plane runs after %s", time.Since(began).Round(time.Second))
	selection, steps := selected(t), beside.Variable(t, stepsVariable, 1, 1)
	limit := time.Duration(beside.Variable(t, deadlineVariable, 0, 480)) * time.Second
	met := beside.Met{}
	began = time.Now()
	changes, comparisons := 0, 0
	beside.EachWorld(t, selection, func(t *testing.T, seed uint64, first bool) {
		r := &run{T: t, pair: p, world: worlds.NewIPVS(seed), limit: limit, met: met}
		more, compared := r.live(first, steps)
		changes, comparisons = changes+more, comparisons+compared
	})
	t.Logf("%d worlds, %d changes, %d comparisons in %s", selection.Fixed+selection.Fresh, changes, comparisons, time.Since(began).Round(time.Second))
	var listed []string
	for _, d := range intendedDifferences() {
		listed = append(listed, d.name)
	}
	met.Check(t, listed)
}

// run is one world of a run.
type run struct {
	*testing.T
	*pair
	world *worlds.World
	limit time.Duration
	met   beside.Met
	clean bool // both programs were started with nothing in the kernel
}

// live creates the world, changes it and compares, steps times. It returns the numbers of changes
// and comparisons. Programs continue from the previous world, except in the first one of a
// group, where kube-proxy must be restarted for other settings; then the agent continues, or is
// restarted too, with or without the former kernel state. Such a world is first compared as
// drawn, all others after they have changed.
func (r *run) live(first bool, steps int) (changes, comparisons int) {
	w := r.world
	begins := first || w.Seed == worlds.FirstOfGroup(w.Seed)
	if begins {
		r.restart(first || w.Chance(40), w.Chance(50))
	}
	shuffle := worlds.NewDice(w.Seed).Rand
	m := r.write(shuffle)
	if begins {
		r.equal("as drawn", m)
		comparisons++
	}
	for step := 1; comparisons < steps; step++ {
		var done []string
		if step == 1 && w.Seed == worlds.FirstOfGroup(w.Seed)+1 {
			done = append(done, w.ChangeZone())
		}
		for range w.Between(3, 7) {
			done = append(done, w.Change())
		}
		changes += len(done)
		if w.Chance(10) {
			done = append(done, "nodeproxy-agent was killed before and started after")
			if err := r.Agent.Kill(); err != nil {
				r.Fatal(err)
			}
		}
		r.equal(fmt.Sprintf("step %d (%s)", step, strings.Join(done, "; ")), r.write(shuffle))
		comparisons++
	}
	return changes, comparisons
}

// write writes the world to the API server. kube-proxy is frozen until equal.
func (r *run) write(shuffle *rand.Rand) worlds.Mark {
	r.Helper()
	m, err := r.pair.write(r.Context(), r.world, shuffle)
	if err != nil {
		r.Fatalf("%v\n%s", err, r.repeat())
	}
	return m
}

// restart stops what must be started with the settings of the world, and writes these.
func (r *run) restart(clean, agentToo bool) {
	r.Helper()
	ctx := r.Context()
	r.clean = clean
	if err := r.KubeProxy.Stop(); err != nil {
		r.Fatal(err)
	}
	if clean || agentToo {
		if err := r.Agent.Stop(); err != nil {
			r.Fatal(err)
		}
	}
	if clean {
		if err := r.OnNodes(ctx, flushScript); err != nil {
			r.Fatal(err)
		}
	}
	if err := errors.Join(r.addUnmanaged(ctx), r.Writer.Begin(ctx, r.world)); err != nil {
		r.Fatal(err)
	}
}

// equal starts what does not run, and waits until both have the same state.
func (r *run) equal(what string, m worlds.Mark) {
	r.Helper()
	began := time.Now()
	r.world.Log = append(r.world.Log, what)
	if err := r.Start(r.world.Settings); err != nil {
		r.Fatal(err)
	}
	differences, err := r.settled(r.Context(), situation{world: r.world}, m, r.limit, r.met)
	switch {
	case err != nil:
		r.Fatalf("%v\n%s\n%s", err, r.Tails(), r.repeat())
	case len(differences) > 0:
		r.Fatalf("the kernel state differs after %s\n%s\n%s\n%s", what, report(r.world, differences), r.Tails(), r.repeat())
	}
	r.Logf("equal after %s: %s", time.Since(began).Round(100*time.Millisecond), what)
}

// report prints what differs, and the Services concerned.
func report(w *worlds.World, differences []difference) string {
	const most, described = 20, 2
	var b strings.Builder
	fmt.Fprintf(&b, "%d things differ:\n", len(differences))
	for _, d := range differences[:min(len(differences), most)] {
		b.WriteString(d.String())
	}
	left := described
	for _, s := range w.Services {
		if left > 0 && concerns(s, b.String()) {
			w.Describe(&b, s.Name())
			left--
		}
	}
	return b.String()
}

// concerns reports whether a report names an address or a node port of a Service.
func concerns(s *worlds.Service, text string) bool {
	for _, ip := range s.Object.Spec.ClusterIPs {
		if strings.Contains(text, ip) {
			return true
		}
	}
	for _, port := range s.Object.Spec.Ports {
		for _, n := range []int32{port.Port, port.NodePort} {
			if n != 0 && strings.Contains(text, strconv.Itoa(int(n))) {
				return true
			}
		}
	}
	return false
}

// repeat prints the world's settings and how to repeat it.
func (r *run) repeat() string {
	w := r.world
	first := worlds.FirstOfGroup(w.Seed)
	return fmt.Sprintf("Seed %d; both started with nothing: %t.\nSettings: %+v, %+v\nNode: %+v\nSteps:\n  %s\nTo repeat it: %s=0 %s=%d %s=%d make test-ipvs",
		w.Seed, r.clean, w.Settings, *w.Settings.IPVS, w.Node, strings.Join(w.Log, "\n  "), worldsVariable, seedVariable, first, freshVariable, w.Seed-first+1)
}
