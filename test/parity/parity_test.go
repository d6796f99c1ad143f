package parity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/parity/beside"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

// The variables that state how much is compared, and which worlds.
const (
	worldsVariable   = "PARITY_WORLDS"
	freshVariable    = "PARITY_FRESH_WORLDS"
	seedVariable     = "PARITY_SEED" // of the first fresh world
	stepsVariable    = "PARITY_STEPS"
	deadlineVariable = "PARITY_DEADLINE" // seconds
)

// firstWorld is the seed of the first fixed world.
const firstWorld = 1

// selected returns the worlds to compare.
func selected(t *testing.T) beside.Selection {
	t.Helper()
	fixed, fresh := 20, 5
	if beside.Full() {
		fixed, fresh = 40, 20
	}
	return beside.Selection{
		First: firstWorld, Fixed: beside.Variable(t, worldsVariable, 0, fixed),
		Seed: beside.Seed(t, seedVariable), Fresh: beside.Variable(t, freshVariable, 0, fresh),
	}
}

// TestSideBySide compares the rules of kube-proxy and nodeproxy-agent in
// generated worlds.
func TestSideBySide(t *testing.T) {
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	selection, steps := selected(t), beside.Variable(t, stepsVariable, 1, 5)
	limit := time.Duration(beside.Variable(t, deadlineVariable, 1, 30)) * time.Second
	p := startPair(t)
	met := beside.Met{}
	began, changes := time.Now(), 0
	beside.EachWorld(t, selection, func(t *testing.T, seed uint64, first bool) {
		r := &run{T: t, pair: p, world: worlds.New(seed), first: first, limit: limit, met: met}
		changes += r.live(steps)
	})
	t.Logf("%d worlds, %d changes in %s", selection.Fixed+selection.Fresh, changes, time.Since(began).Round(time.Second))
	met.Check(t, names(intendedDifferences()))
}

// startPair makes a cluster with two nodes and what runs on them.
func startPair(t *testing.T) *pair {
	t.Helper()
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM)
	t.Cleanup(stop)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := programs.Into(ctx, bin, programs.Controller, programs.Agent); err != nil {
		t.Fatal(err)
	}
	n, err := beside.Install(ctx, cluster.Options{}, bin, filepath.Join(root, "config"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	p, err := beside.New(n)
	if err != nil {
		t.Fatal(err)
	}
	return &pair{Pair: p}
}

// run is one world of a run.
type run struct {
	*testing.T
	*pair
	world  *worlds.World
	first  bool
	limit  time.Duration
	met    beside.Met
	begins start
	fresh  bool // there were no rules before the objects
}

// live brings the world into being, changes it and compares after every step.
// It returns the number of changes.
func (r *run) live(steps int) (changes int) {
	w := r.world
	r.begins = worlds.Pick(w.Dice, startClean, startOver, startLive)
	if r.first {
		r.begins = startClean
	}
	r.begins = r.possible(r.begins, w.Settings)
	ctx := r.Context()
	if err := r.stop(ctx, r.begins); err != nil {
		r.Fatal(err)
	}
	if err := r.Writer.Begin(ctx, w); err != nil {
		r.Fatal(err)
	}
	shuffle := worlds.NewDice(w.Seed).Rand
	m := r.write(shuffle)
	if err := r.start(ctx, w.Settings); err != nil {
		r.Fatal(err)
	}
	r.fresh = r.begins == startClean && !r.afterLarge
	defer func() { r.afterLarge = w.Large(worlds.IPv4) || w.Large(worlds.IPv6) }()
	r.equal("as drawn", m)
	r.fresh = false
	for step := 1; step <= steps; step++ {
		done := r.change(step)
		changes += len(done)
		if killed := w.Chance(10); killed {
			done = append(done, "nodeproxy-agent was killed before and started after")
			m = r.killed(func() worlds.Mark { return r.write(shuffle) })
		} else {
			m = r.write(shuffle)
		}
		r.equal(fmt.Sprintf("step %d (%s)", step, strings.Join(done, "; ")), m)
	}
	return changes
}

// change changes the world for a step, and describes the change.
func (r *run) change(step int) (done []string) {
	w := r.world
	if step == 1 {
		done = append(done, w.ChangeZone())
	}
	for range w.Between(1, 4) {
		done = append(done, w.Change())
	}
	return done
}

// killed does something while nodeproxy-agent is dead.
func (r *run) killed(f func() worlds.Mark) worlds.Mark {
	r.Helper()
	if err := r.Agent.Kill(); err != nil {
		r.Fatal(err)
	}
	m := f()
	if err := r.Start(r.world.Settings); err != nil {
		r.Fatal(err)
	}
	return m
}

func (r *run) write(shuffle *rand.Rand) worlds.Mark {
	r.Helper()
	m, err := r.Write(r.Context(), r.world, shuffle)
	if err != nil {
		r.Fatalf("%v\n%s", err, r.repeat())
	}
	return m
}

// equal waits until both have the same rules.
func (r *run) equal(what string, m worlds.Mark) {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r.world.Log = append(r.world.Log, what)
	differences, err := r.settled(ctx, r.world, m, r.fresh, r.limit, r.met)
	switch {
	case errors.Is(err, beside.ErrNotSeen):
		r.Fatalf("%v\n%s\n%s", err, r.Tails(), r.repeat())
	case err != nil:
		r.Fatalf("%v\n%s", err, r.repeat())
	case len(differences) > 0:
		now, err := r.save(ctx)
		if err != nil {
			r.Fatal(err)
		}
		r.Fatalf("the rules differ after %s\n%s\n%s", what, report(r.world, differences, now), r.repeat())
	}
}

// repeat prints the world's worlds.Settings and how to run it again.
func (r *run) repeat() string {
	w := r.world
	begin, count, why := w.Seed, 1, ""
	if r.begins != startClean {
		begin, count, why = w.Seed-1, 2, ", because it depends on the world before"
	}
	command := fmt.Sprintf("%s=0 %s=%d %s=%d make test-parity%s", worldsVariable, seedVariable, begin, freshVariable, count, why)
	return fmt.Sprintf("Seed %d; %s.\nSettings: %+v\nNode: %+v\nSteps:\n  %s\nTo repeat it: %s",
		w.Seed, r.begins, w.Settings, w.Node, strings.Join(w.Log, "\n  "), command)
}
