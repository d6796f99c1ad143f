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
	relayedPort = 30060
	// relayedPace is how many connections and flows are begun in a second.
	relayedPace = 100
)

// relayed are the addresses of the Service by IP family.
var relayed = []struct{ cluster, external string }{{"10.96.60.60", "203.0.113.60"}, {"fd00:10:96::6060", "2001:db8::60"}}

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
	for _, ips := range relayed {
		if err := e.nodeproxy.Cluster.RouteFromOutside(ips.external, e.node); err != nil {
			t.Fatal(err)
		}
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
	for i := range targets { // the proxy's UDP clients get another endpoint when it stops serving them
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
		change := func(command string) {
			for _, program := range []string{"iptables", "ip6tables"} {
				args := append([]string{command, "INPUT", "-p", "tcp", "--dport", "8080", "-j"}, strings.Fields(rule)...)
				if _, err := servers[2].Exec(t.Context(), program, args...); err != nil {
					t.Fatal(err)
				}
			}
		}
		l.during("an endpoint "+what, 4*time.Second, func() { change("-A") })
		change("-D")
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

// createRelayed creates the Service, for TCP and UDP of both IP families.
func (e *env) createRelayed(servers []*cluster.Pod) {
	e.Helper()
	var addresses, addresses6 []string
	for _, s := range servers {
		addresses, addresses6 = append(addresses, s.IP()), append(addresses6, s.IP6())
	}
	service, slice := cluster.WithoutSelector(metav1.NamespaceDefault, "relayed", addresses...)
	service.Labels["relay"] = "yes"
	service.Spec.Type, service.Spec.IPFamilyPolicy = corev1.ServiceTypeNodePort, new(corev1.IPFamilyPolicyRequireDualStack)
	for _, ips := range relayed {
		service.Spec.ClusterIPs, service.Spec.ExternalIPs = append(service.Spec.ClusterIPs, ips.cluster), append(service.Spec.ExternalIPs, ips.external)
	}
	service.Spec.ClusterIP = relayed[0].cluster
	service.Spec.Ports = nil
	slice.Ports = nil
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		name := strings.ToLower(string(protocol))
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Protocol: protocol, Port: 80, NodePort: relayedPort, TargetPort: intstr.FromInt(8080)})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: new(int32(8080))})
	}
	_, slice6 := cluster.WithoutSelector(metav1.NamespaceDefault, "relayed", addresses6...)
	slice6.Name, slice6.AddressType, slice6.Ports = "relayed-6", discoveryv1.AddressTypeIPv6, slice.Ports
	c := e.nodeproxy.Cluster.Client()
	if err := errors.Join(c.Create(e.Context(), service), c.Create(e.Context(), slice), c.Create(e.Context(), slice6)); err != nil {
		e.Fatal(err)
	}
}

// relayedTargets are ways to the Service.
func (e *env) relayedTargets() []load.Target {
	pod, outside := e.client("visitor"), e.nodeproxy.Cluster.Outside()
	var out []load.Target
	for family, nodePort := range []string{e.node.AddressPort(relayedPort), e.node.AddressPort6(relayedPort)} {
		for _, network := range []string{"tcp", "udp"} {
			for _, way := range []struct {
				name    string
				from    *cluster.Place
				address string
			}{
				{"cluster IP", pod, at(relayed[family].cluster, 80)},
				{"cluster IP", e.node.Place, at(relayed[family].cluster, 80)},
				{"node port", outside, nodePort},
				{"external IP", outside, at(relayed[family].external, 80)},
				{"node port", pod, nodePort},
			} {
				out = append(out, load.Target{Name: way.name, From: way.from, Via: e.node.Name(), Network: network, Address: way.address})
			}
		}
	}
	return out
}

// relays returns nil once the agent serves the Service itself in both IP families, or no longer.
func (e *env) relays(ctx context.Context, want bool) error {
	text, err := e.node.Get(ctx, "http://127.0.0.1:19256/metrics")
	if err != nil {
		return err
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		series := fmt.Sprintf(`nodeproxy_agent_userspace_connections_total{ip_family=%q,namespace="default",port="80/TCP",service="relayed"}`, family)
		if strings.Contains(text, series) != want {
			return fmt.Errorf("%s: the agent serves the Service itself: %t, want %t", family, !want, want)
		}
	}
	return nil
}
