package parity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/parity/beside"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// The variables that say how much is compared, and which worlds.
const (
	worldsVariable   = "PARITY_WORLDS"
	stepsVariable    = "PARITY_STEPS"
	seedVariable     = "PARITY_SEED"
	deadlineVariable = "PARITY_DEADLINE" // seconds
)

// TestSideBySide compares the rules of kube-proxy and nodeproxy-agent in
// generated worlds. World i of a run is drawn from the seed plus i.
func TestSideBySide(t *testing.T) {
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	count, steps := beside.Variable(t, worldsVariable, 1, 40), beside.Variable(t, stepsVariable, 1, 5)
	seed, limit := beside.Variable(t, seedVariable, 1, 1), time.Duration(beside.Variable(t, deadlineVariable, 1, 30))*time.Second
	p := startPair(t)
	met := map[string]int{}
	began, changes, first := time.Now(), 0, true
	beside.EachWorld(t, seed, count, func(t *testing.T, seed uint64) {
		r := &run{T: t, pair: p, world: worlds.New(seed), first: first, limit: limit, met: met}
		first = false
		changes += r.live(steps)
	})
	t.Logf("%d worlds, %d changes in %s", count, changes, time.Since(began).Round(time.Second))
	for _, d := range wantedDifferences() {
		t.Logf("wanted difference %q was met %d times", d.name, met[d.name])
	}
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
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, "./cmd/nodeproxy-controller", "./cmd/nodeproxy-agent")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, out)
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
	met    map[string]int
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
	r.fresh = r.begins == startClean
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

// change changes the world for a step, and tells how.
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

// repeat tells the world's worlds.Settings and how to have it once more.
func (r *run) repeat() string {
	w := r.world
	command := fmt.Sprintf("%s=%d %s=1 make test-parity", seedVariable, w.Seed, worldsVariable)
	if r.begins != startClean {
		command = fmt.Sprintf("%s=%d %s=2 make test-parity, because it depends on the world before", seedVariable, w.Seed-1, worldsVariable)
	}
	return fmt.Sprintf("Seed %d; %s.\nSettings: %+v\nNode: %+v\nSteps:\n  %s\nTo repeat it: %s",
		w.Seed, r.begins, w.Settings, w.Node, strings.Join(w.Log, "\n  "), command)
}
