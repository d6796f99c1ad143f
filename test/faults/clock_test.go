package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

func clockFaults() []fault {
	return []fault{{name: "clock-jumped", title: "clocks of agents and controller jump by an hour, forth and back, and back and forth", repair: 30 * time.Second, inject: clockJumped}}
}

// buildJumping makes the programs with a clock that signals set.
func buildJumping(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	for _, program := range []string{"nodeproxy-controller", "nodeproxy-agent"} {
		directory, err := filepath.Abs(filepath.Join("..", "..", "cmd", program))
		if err != nil {
			t.Fatal(err)
		}
		main, err := os.ReadFile(filepath.Join(directory, "main.go"))
		if err != nil {
			t.Fatal(err)
		}
		// The last one is for the import, which may have no other use.
		const real, jumping, used = "clock.RealClock{}", "newJumpingClock()", "\nvar _ clock.Clock = (*jumpingClock)(nil)\n"
		if !strings.Contains(string(main), real) {
			t.Fatalf("the main.go of %s does not hold %s: put the jumping clock in where the real one is made now", program, real)
		}
		changed := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(changed, []byte(strings.ReplaceAll(string(main), real, jumping)+used), 0o600); err != nil {
			t.Fatal(err)
		}
		clock, err := filepath.Abs(filepath.Join("testdata", "jumpingclock.go"))
		if err != nil {
			t.Fatal(err)
		}
		overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
			filepath.Join(directory, "main.go"): changed, filepath.Join(directory, "jumpingclock.go"): clock}})
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "overlay.json")
		if err := os.WriteFile(path, overlay, 0o600); err != nil {
			t.Fatal(err)
		}
		build := exec.Command("go", "build", "-overlay", path, "-o", bin, "./cmd/"+program)
		build.Dir = filepath.Join("..", "..")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s with a jumping clock: %v\n%s", program, err, out)
		}
	}
	return bin
}

// clockJumped sets clocks while endpoints change. All the time each node must state
// that it is programmed, and NodeProxy that no node is stale.
func clockJumped(r *run) {
	stop := r.change(200 * time.Millisecond)
	const forth, back = syscall.SIGUSR1, syscall.SIGUSR2
	for _, jump := range []syscall.Signal{forth, back, back, forth} {
		processes := []*cluster.Process{r.controllers[0]}
		for _, agent := range r.agents {
			processes = append(processes, agent)
		}
		for _, p := range processes {
			r.must(syscall.Kill(p.PID(), jump))
		}
		r.watchChecks()
	}
	// An agent that starts finds what it has stored to be of an hour later.
	node := r.cluster.Node(0)
	r.must(syscall.Kill(r.agents[node.Name()].PID(), forth))
	r.watchChecks()
	r.must(r.agents[node.Name()].Kill())
	r.must(r.startAgent(node))
	r.pass(3 * time.Second)
	r.ended = time.Now()
	stop()
}

// watchChecks fails the test if a node is unhealthy at any time until the controller has checked all
// Leases: one check may be under way, and the next one begins after the jump.
func (r *run) watchChecks() {
	const metric = "nodeproxy_controller_agent_checks_total"
	before := -1
	r.until(time.Minute, func(ctx context.Context) error {
		if err := r.well(ctx); err != nil {
			r.Fatal(err)
		}
		checks, err := r.cluster.ControlPlane().Total(ctx, "http://"+controllerMetrics+"/metrics", metric)
		if err == nil && before < 0 {
			before = checks
		}
		if err == nil && checks < before+2 {
			err = fmt.Errorf("the controller has checked the agents' Leases %d times, %d of them before the jump", checks, before)
		}
		return err
	})
}

// well returns an error if a node is not programmed or counts as stale.
func (r *run) well(ctx context.Context) error {
	for _, node := range r.cluster.Nodes() {
		rules := &v1alpha1.NodeProxyRules{}
		if err := r.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
			return err
		}
		c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
		if c == nil || c.Reason != v1alpha1.ReasonProgrammed {
			return fmt.Errorf("%s: Programmed is %+v", node.Name(), c)
		}
	}
	np := &v1alpha1.NodeProxy{}
	if err := r.cluster.Client().Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np); err != nil {
		return err
	}
	if np.Status.Nodes.Stale > 0 || np.Status.Nodes.Lagging > 0 {
		return fmt.Errorf("NodeProxy counts %d nodes as stale and %d as lagging", np.Status.Nodes.Stale, np.Status.Nodes.Lagging)
	}
	return nil
}
