package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

const (
	// earlyService is what clients connect to before it exists.
	earlyService = "10.96.50.51"
	// earlyPatience is how long a client waits that does not give up: TCP sends the
	// first packet again after 1, 3, 7, 15 and 31 s.
	earlyPatience = 40 * time.Second
)

// TestEarlyConnections has clients connect to a Service that does not exist yet, and
// to endpoints that do not answer. The kernel keeps for two minutes what it did with
// their first packets, and does the same with those that follow. Once the rules have
// an endpoint that answers, it answers who waits still, and who comes from a port that
// had no answer before.
func TestEarlyConnections(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.startAgent()
	e.programmed()
	from := []*cluster.Place{e.client("visitor"), e.nodeproxy.Cluster.Outside()}
	if err := e.nodeproxy.Cluster.RouteFromOutside(earlyService, e.node); err != nil {
		t.Fatal(err)
	}
	one, two := e.server("one", "10.244.1.101"), e.server("two", "10.244.1.102")
	// The test writes the slice, before the Service: clients that wait would be rejected
	// while it had no endpoint, and each step is one change.
	service, slice := cluster.WithoutSelector(metav1.NamespaceDefault, "early", one.IP())
	service.Spec.ClusterIP = earlyService
	write := e.nodeproxy.Cluster.Client()
	e.answersWhoWasEarly(from, 30000, func() error {
		return errors.Join(write.Create(t.Context(), slice), write.Create(t.Context(), service))
	})
	if _, err := one.Exec(t.Context(), "iptables", "-A", "INPUT", "-p", "tcp", "-j", "DROP"); err != nil {
		t.Fatal(err)
	}
	e.answersWhoWasEarly(from, 30001, func() error { // the first one is terminating
		_, both := cluster.WithoutSelector(metav1.NamespaceDefault, "early", one.IP(), two.IP())
		slice.Endpoints = both.Endpoints
		slice.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
		return write.Update(t.Context(), slice)
	})
	if _, err := two.Exec(t.Context(), "iptables", "-A", "INPUT", "-p", "tcp", "-j", "DROP"); err != nil {
		t.Fatal(err)
	}
	three := e.server("three", "10.244.1.103")
	e.answersWhoWasEarly(from, 30002, func() error { // the second one is gone
		_, last := cluster.WithoutSelector(metav1.NamespaceDefault, "early", three.IP())
		slice.Endpoints = last.Endpoints
		return errors.Join(write.Update(t.Context(), slice), one.Delete(t.Context()), two.Delete(t.Context()))
	})
}

// answersWhoWasEarly connects to the Service from each place, from a given port for
// a moment and from another one with patience, and then has it answer.
func (e *env) answersWhoWasEarly(from []*cluster.Place, port int, answer func() error) {
	e.Helper()
	waiting := make(chan error, len(from))
	for _, place := range from {
		if err := e.connectEarly(place, port, 250*time.Millisecond); !errors.Is(err, cluster.ErrNoAnswer) {
			e.Fatalf("from %s: %v, want no answer", place.Name(), err)
		}
		go func() { waiting <- e.connectEarly(place, 0, earlyPatience) }()
	}
	e.until(func(context.Context) error { return e.waitUnanswered(2 * len(from)) })
	if err := answer(); err != nil {
		e.Fatal(err)
	}
	for range from {
		if err := cmp.Or(<-waiting, load.Planted()); err != nil {
			load.Lost(e, "a client that waited: %v", err)
		}
	}
	for _, place := range from {
		e.until(func(context.Context) error { return e.connectEarly(place, port, 2500*time.Millisecond) })
	}
}

// connectEarly connects to the Service; port 0: from any.
func (e *env) connectEarly(from *cluster.Place, port int, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(e.Context(), patience)
	defer cancel()
	address := map[string]string{"visitor": "10.244.1.2", "outside": "172.20.0.200"}[from.Name()]
	_, err := from.DialFrom(ctx, at(address, port), "tcp", at(earlyService, 80))
	if patience > time.Second {
		err = from.Cluster().Trace(e.Context(), err)
	}
	return err
}

// waitUnanswered wants the node to track that many connections to the Service that
// are unanswered.
func (e *env) waitUnanswered(want int) error {
	to := netip.MustParseAddrPort(at(earlyService, 80))
	flows, err := e.node.Flows(to.Addr(), func(f cluster.Flow) bool { return f.To == to && f.State == "SYN_SENT" })
	if err != nil {
		return err
	}
	if len(flows) != want {
		return fmt.Errorf("%d connections to %s wait, want %d: %v", len(flows), earlyService, want, flows)
	}
	return nil
}
