package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// answers is what a probe finds, one entry a look; the last one stays. "slow"
// is no answer in time, "" nobody or no proxy, anything else the proxy's mode.
type answers struct {
	list  []string
	looks int
}

func (a *answers) probe(context.Context) (string, bool, error) {
	answer := a.list[min(a.looks, len(a.list)-1)]
	a.looks++
	if answer == "slow" {
		return "", false, errors.New("timeout")
	}
	return answer, answer != "", nil
}

// logged keeps what is logged.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) add(_, args string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, args)
}

// with returns the lines that hold text.
func (l *logged) with(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.lines), func(line string) bool { return !strings.Contains(line, text) })
}

// newAgent returns an agent over a kernel in memory that does not run, and its
// log.
func newAgent(t *testing.T, probe ProbeFunc) (*Agent, *dataplanetest.Fake, *logged) {
	t.Helper()
	client, err := NewClient(&rest.Config{Host: "https://192.0.2.10:6443"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kernel, log := dataplanetest.NewFake(), &logged{}
	a, err := New(Options{
		NodeName: "node-1", Client: client, Probe: probe, Clock: clock.RealClock{},
		Dataplanes: map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: kernel},
		Log:        funcr.New(log.add, funcr.Options{Verbosity: 2}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return a, kernel, log
}

// fill gives the agent a complete set of one Service.
func fill(t *testing.T, a *Agent) *rig {
	r := &rig{store: a.store, t: t, version: 10}
	r.replaceServices([]*v1alpha1.ServiceProxyRules{r.object("a", 1)})
	r.setInventory(inventoryOf("shop.a"))
	r.setRules(r.own())
	return r
}

func TestAwaitTurn(t *testing.T) {
	tests := []struct {
		name    string
		answers []string
		looks   int    // until it goes on; 0: it does not
		log     string // that must be there
	}{
		{"nobody", []string{""}, 1, ""},
		{"a proxy that stops", []string{"ipvs", "ipvs", ""}, 3, "Another proxy is active"},
		{"a proxy that answers late, then runs", []string{"slow", "slow", "iptables"}, 0, "has not answered yet"},
		{"late, then closed", []string{"slow", ""}, 2, "has not answered yet"},
		{"never answers", []string{"slow"}, 5, "taking it for no proxy"},
		{"the row is broken by an answer", []string{"slow", "slow", "slow", "slow", "iptables", "slow", "slow", "slow", "slow", ""}, 10, ""},
		{"has answered before", []string{"iptables", "slow"}, 0, "Another proxy is active"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				found := &answers{list: tt.answers}
				a, _, log := newAgent(t, found.probe)
				fill(t, a)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the bubble's
				defer cancel()
				if went := a.awaitTurn(ctx); went != (tt.looks > 0) {
					t.Fatalf("goes on: %v, after %d looks", went, found.looks)
				}
				if tt.looks > 0 && found.looks != tt.looks {
					t.Errorf("went on after %d looks, want %d", found.looks, tt.looks)
				}
				if tt.log != "" && len(log.with(tt.log)) == 0 {
					t.Errorf("log %q lacks %q", log.lines, tt.log)
				}
			})
		})
	}
}

func TestPendingSaysThatAPortDoesNotAnswer(t *testing.T) {
	found := &answers{list: []string{"slow"}}
	a, _, _ := newAgent(t, found.probe)
	fill(t, a)
	if a.heardNothing(1) {
		t.Fatal("one probe without an answer is taken for nobody")
	}
	c := programmedCondition(a.store.snapshot(), a.facts())
	if c.Reason != v1alpha1.ReasonPending || !strings.Contains(c.Message, "127.0.0.1:10249") || !strings.Contains(c.Message, "has not answered yet") {
		t.Errorf("condition %+v", c)
	}
	a.setConflict("", false)
	c = programmedCondition(a.store.snapshot(), a.facts())
	if diff := cmp.Diff("no complete set of rules has been written to the kernel since the agent started", c.Message); diff != "" {
		t.Errorf("once answered (-want +got):\n%s", diff)
	}
}
