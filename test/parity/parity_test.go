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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// The variables that say how much is compared, and which worlds.
const (
	worldsVariable   = "PARITY_WORLDS"
	stepsVariable    = "PARITY_STEPS"
	seedVariable     = "PARITY_SEED"
	deadlineVariable = "PARITY_DEADLINE" // seconds
)

// maxFailed ends a run in which world after world differs.
const maxFailed = 3

// TestSideBySide compares the rules of kube-proxy and nodeproxy-agent in
// generated worlds. World i of a run is drawn from the seed plus i.
func TestSideBySide(t *testing.T) {
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	count, steps := variable(t, worldsVariable, 40), variable(t, stepsVariable, 5)
	seed, limit := variable(t, seedVariable, 1), time.Duration(variable(t, deadlineVariable, 30))*time.Second
	p := startPair(t)
	wr := worlds.NewWriter(p.nodeproxy.Cluster.Client())
	if err := worlds.MakeNamespaces(t.Context(), p.nodeproxy.Cluster.Client()); err != nil {
		t.Fatal(err)
	}
	met := map[string]int{}
	began, changes, failed := time.Now(), 0, 0
	for i := range count {
		w := worlds.New(uint64(seed + i)) //nolint:gosec // a seed
		ok := t.Run(fmt.Sprintf("world %d", seed+i), func(t *testing.T) {
			r := &run{T: t, pair: p, writer: wr, world: w, first: i == 0, limit: limit, met: met}
			changes += r.live(steps)
		})
		if !ok {
			if failed++; failed == maxFailed {
				t.Errorf("giving up after %d worlds that differ", failed)
				break
			}
		}
	}
	t.Logf("%d worlds, %d changes in %s", count, changes, time.Since(began).Round(time.Second))
	for _, d := range wantedDifferences() {
		t.Logf("wanted difference %q was met %d times", d.name, met[d.name])
	}
}

func variable(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s: a number from 1 is expected", name, text)
	}
	return n
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
	scheme, err := install.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	reference, err := binaries.Ensure(ctx, os.Stderr, binaries.KubeProxy)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(ctx, cluster.Options{Nodes: 2, Scheme: scheme, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	n := &install.Nodeproxy{Cluster: c, Bin: bin, Config: filepath.Join(root, "config")}
	if err := n.Prepare(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := n.StartController(); err != nil {
		t.Fatal(err)
	}
	p, err := newPair(n, filepath.Join(reference, "kube-proxy"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// run is one world of a run.
type run struct {
	*testing.T
	*pair
	writer *worlds.Writer
	world  *worlds.World
	first  bool
	limit  time.Duration
	met    map[string]int
	start  start
	fresh  bool // there were no rules before the objects
}

// live brings the world into being, changes it and compares after every step.
// It returns the number of changes.
func (r *run) live(steps int) (changes int) {
	w := r.world
	r.start = worlds.Pick(w.Dice, startClean, startOver, startLive)
	if r.first {
		r.start = startClean
	}
	r.start = r.possible(r.start, w.Settings)
	ctx := r.Context()
	if err := r.stop(ctx, r.start); err != nil {
		r.Fatal(err)
	}
	if err := r.writer.Begin(ctx, w); err != nil {
		r.Fatal(err)
	}
	shuffle := worlds.NewDice(w.Seed).Rand
	m := r.write(shuffle)
	if err := r.pair.start(w.Settings); err != nil {
		r.Fatal(err)
	}
	r.fresh = r.start == startClean
	r.equal("as drawn", m)
	r.fresh = false
	for step := 1; step <= steps; step++ {
		var done []string
		if step == 1 {
			done = append(done, w.ChangeZone())
		}
		for range w.Between(1, 4) {
			done = append(done, w.Change())
		}
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

// killed does something while nodeproxy-agent is dead.
func (r *run) killed(f func() worlds.Mark) worlds.Mark {
	r.Helper()
	if err := r.testedP.Kill(); err != nil {
		r.Fatal(err)
	}
	m := f()
	if err := r.startAgent(); err != nil {
		r.Fatal(err)
	}
	return m
}

func (r *run) write(shuffle *rand.Rand) worlds.Mark {
	r.Helper()
	if err := r.setGuest(r.world.Guest); err != nil {
		r.Fatal(err)
	}
	m, err := r.writer.Write(r.Context(), r.world, shuffle)
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
	case errors.Is(err, errNotSeen):
		r.Fatalf("%v\nkube-proxy, %s\nnodeproxy-agent, %s\n%s", err, r.referenceP.Tail(), r.testedP.Tail(), r.repeat())
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
	if r.start != startClean {
		command = fmt.Sprintf("%s=%d %s=2 make test-parity, because it depends on the world before", seedVariable, w.Seed-1, worldsVariable)
	}
	return fmt.Sprintf("Seed %d; %s.\nSettings: %+v\nNode: %+v\nSteps:\n  %s\nTo repeat it: %s",
		w.Seed, r.start, w.Settings, w.Node, strings.Join(w.Log, "\n  "), command)
}
