package agent

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// answers is what the ports answer, one entry a probe; the last one stays. "slow"
// is no answer in time, "" no proxy, anything else evidence.
type answers struct {
	mu     sync.Mutex
	list   []string
	probes int
}

func (a *answers) probe(context.Context, string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := a.list[min(a.probes, len(a.list)-1)]
	a.probes++
	if answer == "slow" {
		return "", errors.New("timeout")
	}
	return answer, nil
}

// become makes the ports answer something else from now on.
func (a *answers) become(answer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list, a.probes = []string{answer}, 0
}

// spots are the indicators in a kernel.
type spots struct {
	mu sync.Mutex
	// standing shows always, appears only between Begin and End. Begin removes
	// it, as the canaries.
	standing, appears string
	leftovers         []string
	stuck             error // of Begin
	begun             bool
}

func (s *spots) OtherProxy(context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.standing == "" && s.begun {
		return s.appears, nil
	}
	return s.standing, nil
}

func (s *spots) Begin(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stuck != nil {
		return nil, s.stuck
	}
	s.begun, s.appears = true, ""
	return s.leftovers, nil
}

func (s *spots) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = false
}

func (s *spots) set(f func(*spots)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// newAgent returns an agent over a kernel in memory that does not run, and its
// log.
func newAgent(t *testing.T, probe ownership.ProbeFunc) (*Agent, *dataplanetest.Fake, *agenttest.Log) {
	t.Helper()
	return newAgentAt(t, probe, clock.RealClock{})
}

func newAgentAt(t *testing.T, probe ownership.ProbeFunc, clk clock.Clock) (*Agent, *dataplanetest.Fake, *agenttest.Log) {
	t.Helper()
	client, err := apiclient.New(&rest.Config{Host: "https://192.0.2.10:6443"})
	if err != nil {
		t.Fatal(err)
	}
	kernel, log := dataplanetest.NewFake(), &agenttest.Log{}
	a, err := New(Options{
		NodeName: "node-1", Client: client, Probe: probe, Clock: clk,
		Dataplanes: map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: kernel},
		Spotter:    &spots{},
		Log:        funcr.New(log.Add, funcr.Options{Verbosity: 2}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return a, kernel, log
}

func spotsOf(a *Agent) *spots { return a.options.Spotter.(*spots) }

// lose has another proxy be detected for a moment.
func lose(a *Agent) {
	spotsOf(a).set(func(s *spots) { s.standing = "kube-proxy answers" })
	a.owner.Check(context.Background(), false)
	spotsOf(a).set(func(s *spots) { s.standing = "" })
}

// hold gives the agent the ownership.
func hold(t *testing.T, a *Agent) {
	t.Helper()
	if !a.owner.Acquire(t.Context()) {
		t.Fatal("ownership cannot be acquired")
	}
}

// fill gives the agent a complete set of one Service.
func fill(t *testing.T, a *Agent) *rig {
	r := &rig{Store: a.store, t: t, Objects: agenttest.Objects{Version: 10}}
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1)})
	r.SetInventory(agenttest.InventoryOf("shop.a"))
	r.SetRules(r.Node())
	return r
}

// ownershipRig is an agent whose ownership and sync loop run.
type ownershipRig struct {
	*Agent
	ports  *answers
	spots  *spots
	kernel *dataplanetest.Fake
	log    *agenttest.Log
	rig    *rig
}

// runOwnership runs a test with an agent whose ownership and sync loop run, in a
// bubble with a clock of its own.
func runOwnership(t *testing.T, test func(t *testing.T, r ownershipRig)) {
	t.Helper()
	runPrepared(t, func(*ownershipRig) {}, test)
}

// runAudit is runOwnership of an agent that starts with enforcement Audit.
func runAudit(t *testing.T, test func(t *testing.T, r ownershipRig)) {
	t.Helper()
	runPrepared(t, func(r *ownershipRig) { r.rig.SetRules(r.rig.Node(inAudit)) }, test)
}

// runPrepared is runOwnership with something done before the agent runs.
func runPrepared(t *testing.T, prepare func(*ownershipRig), test func(t *testing.T, r ownershipRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := ownershipRig{ports: &answers{list: []string{""}}}
		r.Agent, r.kernel, r.log = newAgent(t, r.ports.probe)
		r.spots = spotsOf(r.Agent)
		r.rig = fill(t, r.Agent)
		prepare(&r)
		r.changed()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.own(ctx) })
		wg.Go(func() { r.loop.Run(ctx) })
		test(t, r)
		cancel()
		wg.Wait()
	})
}

// after lets the bubble's time go on.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// statusOf is the status that the agent would write now.
func statusOf(a *Agent, former []metav1.Condition) v1alpha1.NodeProxyRulesStatus {
	s, f := a.refresh()
	return status.Build(s, f, former)
}

func factsOf(a *Agent) status.Facts {
	_, f := a.refresh()
	return f
}

// condition returns reason and message of Programmed.
func (r ownershipRig) condition() (string, string) {
	c := status.ProgrammedCondition(r.refresh())
	return c.Reason, c.Message
}
