package nodes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

const (
	relayed     = "10.96.60.60" // cluster IP
	relayedIP   = "203.0.113.60"
	relayedPort = 30060
	// relayedPace is how many connections and flows are begun in a second.
	relayedPace = 100
)

// TestUserspace has the agent serve a Service itself, first with the whole node in mode Userspace and then
// as a single Service, and loses no connection: when that begins and ends, when one of three endpoints
// rejects them or does not answer, and when the agent restarts.
func TestUserspace(t *testing.T) {
	t.Parallel()
	e := start(t)
	agent := e.startAgent()
	e.programmed()
	servers := []*cluster.Pod{e.server("one", "10.244.1.101"), e.server("two", "10.244.1.102"), e.server("three", "10.244.1.103")}
	e.createRelayed(servers)
	if err := e.nodeproxy.Cluster.RouteFromOutside(relayedIP, e.node); err != nil {
		t.Fatal(err)
	}
	targets := e.relayedTargets()
	for _, target := range targets {
		e.until(func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, load.Patience)
			defer cancel()
			_, err := target.From.Dial(ctx, target.Network, target.Address)
			return err
		})
	}
	begin := func(targets []load.Target) *connections {
		l := startLoad(t, relayedPace, targets)
		l.least = relayedPace * 0.4 // half are TCP
		return l
	}
	l := begin(targets)
	l.during("mode Userspace", 2*time.Second, func() {
		e.patch(`{"spec":{"settings":{"mode":"Userspace"}}}`)
		e.until(func(ctx context.Context) error { return e.relays(ctx, true) })
	})
	l.End()
	for i := range targets { // the proxy's clients of UDP get another endpoint when it stops serving them
		targets[i].NotHeld = targets[i].Network == "udp"
	}
	l = begin(targets)
	l.during("mode NFTables", 2*time.Second, func() {
		e.patch(`{"spec":{"settings":{"mode":"NFTables"}}}`)
		e.until(func(ctx context.Context) error { return e.relays(ctx, false) })
	})
	policy := &v1alpha1.ServiceProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "relayed"}}
	policy.Spec.ServiceSelector = v1alpha1.LabelSelector{MatchLabels: map[string]string{"relay": "yes"}}
	policy.Spec.Overrides.Serving = new(v1alpha1.ServingUserspace)
	l.during("a policy for the Service", 2*time.Second, func() {
		if err := e.nodeproxy.Cluster.Client().Create(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		e.until(func(ctx context.Context) error { return e.relays(ctx, true) })
	})
	l.End()

	for i := range targets { // endpoints that fail lose what they hold
		targets[i].NotHeld = true
	}
	l = begin(targets)
	for what, rule := range map[string]string{"rejects": "REJECT --reject-with tcp-reset", "does not answer": "DROP"} {
		rule := append([]string{"INPUT", "-p", "tcp", "--dport", "8080", "-j"}, strings.Fields(rule)...)
		l.during("an endpoint "+what, 4*time.Second, func() {
			if _, err := servers[2].Exec(t.Context(), "iptables", append([]string{"-A"}, rule...)...); err != nil {
				t.Fatal(err)
			}
		})
		if _, err := servers[2].Exec(t.Context(), "iptables", append([]string{"-D"}, rule...)...); err != nil {
			t.Fatal(err)
		}
	}
	l.during("the agent restarts", 2*time.Second, func() {
		if err := agent.Stop(); err != nil {
			t.Fatal(err)
		}
		e.startAgent("--userspace-drain", "1s")
		e.until(func(ctx context.Context) error { return e.relays(ctx, true) })
	})
	l.during("the policy deleted", 2*time.Second, func() {
		if err := e.nodeproxy.Cluster.Client().Delete(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		e.until(func(ctx context.Context) error { return e.relays(ctx, false) })
	})
}

// createRelayed creates the Service, for TCP and UDP.
func (e *env) createRelayed(servers []*cluster.Pod) {
	e.Helper()
	var addresses []string
	for _, s := range servers {
		addresses = append(addresses, s.IP())
	}
	service, slice := cluster.WithoutSelector(metav1.NamespaceDefault, "relayed", addresses...)
	service.Labels["relay"] = "yes"
	service.Spec.Type, service.Spec.ClusterIP, service.Spec.ExternalIPs = corev1.ServiceTypeNodePort, relayed, []string{relayedIP}
	service.Spec.Ports = nil
	slice.Ports = nil
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		name := strings.ToLower(string(protocol))
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Protocol: protocol, Port: 80, NodePort: relayedPort, TargetPort: intstr.FromInt(8080)})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: new(int32(8080))})
	}
	c := e.nodeproxy.Cluster.Client()
	if err := errors.Join(c.Create(e.Context(), service), c.Create(e.Context(), slice)); err != nil {
		e.Fatal(err)
	}
}

// relayedTargets are ways to the Service.
func (e *env) relayedTargets() []load.Target {
	pod, outside := e.client("visitor"), e.nodeproxy.Cluster.Outside()
	var out []load.Target
	for _, network := range []string{"tcp", "udp"} {
		for _, way := range []struct {
			name    string
			from    *cluster.Place
			address string
		}{
			{"cluster IP", pod, at(relayed, 80)},
			{"cluster IP", e.node.Place, at(relayed, 80)},
			{"node port", outside, e.node.AddressPort(relayedPort)},
			{"external IP", outside, at(relayedIP, 80)},
			{"node port", pod, e.node.AddressPort(relayedPort)},
		} {
			out = append(out, load.Target{Name: way.name, From: way.from, Via: e.node.Name(), Network: network, Address: way.address})
		}
	}
	return out
}

// relays returns nil once the agent serves the Service itself, or no longer.
func (e *env) relays(ctx context.Context, want bool) error {
	text, err := e.node.Get(ctx, "http://127.0.0.1:19256/metrics")
	if err != nil {
		return err
	}
	const series = `nodeproxy_agent_userspace_connections_total{ip_family="IPv4",namespace="default",port="80/TCP",service="relayed"}`
	if strings.Contains(text, series) != want {
		return fmt.Errorf("the agent serves the Service itself: %t, want %t", !want, want)
	}
	return nil
}
