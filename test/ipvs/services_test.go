package ipvs

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

// TestServices makes connections to Services of every type. They are programmed before, so that one
// connection to each must do.
func TestServices(tt *testing.T) {
	t := use(tt)
	t.sub("every type answers", test.everyType)
	t.sub("every type answers over SCTP", test.everyTypeSCTP)
	t.sub("source ranges", test.sourceRanges)
	t.sub("policy Local", test.policyLocal)
	t.sub("health check node port", test.healthCheckNodePort)
	t.sub("session affinity", test.affinity)
	t.sub("hairpin", test.hairpin)
	t.sub("no endpoints", test.noEndpoints)
	t.sub("what is no Service", test.noService)
	t.sub("clients' addresses", test.clients)
	t.sub("served by the agent", test.byAgent)
}

func (t test) everyType() { t.everyTypeOver("tcp", "udp") }

func (t test) everyTypeSCTP() {
	if !t.sctp {
		if uml.Inside() {
			t.Fatal("the kernel of User-mode Linux has no SCTP, though docs/parity.md claims that it is proven there")
		}
		t.Skip("this machine's kernel has no SCTP")
	}
	t.everyTypeOver("sctp")
}

// everyTypeOver connects from a pod, a node and outside, to each kind of address.
func (t test) everyTypeOver(networks ...string) {
	t.Helper()
	first, second := t.cluster.Node(0), t.cluster.Node(1)
	for _, network := range networks {
		addresses := []string{
			at(plainIP, 80), first.AddressPort(plainPort), second.AddressPort(plainPort),
			at(plainIP6, 80), first.AddressPort6(plainPort), second.AddressPort6(plainPort),
		}
		if network != "sctp" {
			addresses = append(addresses, at(balancerIP, 80), at(externalIP, 80))
		}
		for _, from := range []*cluster.Place{t.visitors[0].Place, t.visitors[1].Place, first.Place, second.Place, t.cluster.Outside()} {
			for _, address := range addresses {
				t.answered(from, network, address, "web-1", "web-2", "web-3")
			}
		}
	}
}

func (t test) sourceRanges() {
	t.answered(t.cluster.Outside(), "tcp", at(rangesIP, 80))
	t.answered(t.cluster.Outside(), "udp", at(rangesIP, 80))
	t.silent(t.cluster.Outside(), "tcp", at(closedIP, 80))
	t.silent(t.cluster.Outside(), "udp", at(closedIP, 80))
	t.silent(t.visitors[0].Place, "tcp", at(rangesIP, 80)) // the pod is in no range
}

// policyLocal connects by way of a node with and one without a local endpoint.
func (t test) policyLocal() {
	first, second, outside := t.cluster.Node(0), t.cluster.Node(1), t.cluster.Outside()
	t.silent(outside, "tcp", at(localVIP, 80)) // by the first node
	t.silent(outside, "tcp", first.AddressPort(localPort))
	for _, network := range []string{"tcp", "udp"} { // pods and the node reach the other one
		for _, from := range []*cluster.Place{t.visitors[0].Place, first.Place} {
			t.answered(from, network, at(localVIP, 80), "local")
			t.answered(from, network, first.AddressPort(localPort), "local")
		}
	}
	t.silent(t.visitors[0].Place, "tcp", at(insideIP, 80))
	t.rejected(first.Place, "udp", at(insideIP, 80)) // of what the node itself sends IPVS is first

	if err := t.route(1, localVIP); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := t.route(0, localVIP); err != nil {
			t.Error(err)
		}
	}()
	for _, network := range []string{"tcp", "udp"} {
		t.answered(outside, network, at(localVIP, 80), "local")
		t.answered(outside, network, second.AddressPort(localPort), "local")
		t.answered(t.visitors[1].Place, network, at(localVIP, 80), "local")
		t.answered(t.visitors[1].Place, network, at(insideIP, 80), "local")
	}
	t.seen(outside, at(localVIP, 80), outsideIP)
	t.seen(outside, second.AddressPort(localPort), outsideIP)
	// Policy Local is for what comes by external addresses.
	t.answered(t.visitors[0].Place, "tcp", at(localIP, 80), "local")
}

// healthCheckNodePort asks both nodes from outside.
func (t test) healthCheckNodePort() {
	for i, want := range []int{http.StatusServiceUnavailable, http.StatusOK} {
		t.until(func(ctx context.Context) error {
			got, err := get(ctx, t.cluster.Outside(), t.cluster.Node(i).AddressPort(healthPort))
			if err == nil && got != want {
				err = fmt.Errorf("node %d answers %d at its health check port, want %d", i+1, got, want)
			}
			return err
		})
	}
}

// get makes one request over HTTP and returns the status.
func get(ctx context.Context, from *cluster.Place, address string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := from.Connect(ctx, "tcp", address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", http.NoBody)
	if err != nil {
		return 0, err
	}
	if err := request.Write(conn); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

// affinity keeps each client at its server, whatever the connection.
func (t test) affinity() {
	for _, from := range []*cluster.Place{t.visitors[0].Place, t.visitors[1].Place, t.cluster.Node(0).Place} {
		t.answered(from, "tcp", at(stickyIP, 80))
		if got := t.sequence(from, "tcp", at(stickyIP, 80), 8); len(names(got)) != 1 {
			t.Errorf("from %s, connections go to %v", from.Name(), got)
		}
	}
	s, err := virtual(t.Context(), t.cluster.Node(0), "tcp", at(stickyIP, 80))
	if err != nil {
		t.Fatal(err)
	}
	if want := "-s rr -p 600"; s.rule != want {
		t.Errorf("the virtual server is %q, want %q", s.rule, want)
	}
}

// hairpin lets a pod reach itself by its Service: the server has to see the node.
func (t test) hairpin() {
	for _, network := range []string{"tcp", "udp"} {
		t.answered(t.local.Place, network, at(localIP, 80), "local")
	}
	t.seen(t.local.Place, at(localIP, 80), t.cluster.Node(1).PodGateway())
}

// noEndpoints wants a rejection at once.
func (t test) noEndpoints() {
	for _, from := range []*cluster.Place{t.visitors[0].Place, t.cluster.Node(0).Place, t.cluster.Outside()} {
		for _, network := range []string{"tcp", "udp"} {
			t.rejected(from, network, at(emptyIP, 80))
		}
		t.rejected(from, "tcp", t.cluster.Node(0).AddressPort(emptyPort))
	}
}

// noService connects to ports of Services' addresses, and to loopback addresses,
// where nothing is.
func (t test) noService() {
	node := t.cluster.Node(0)
	t.rejected(t.visitors[0].Place, "tcp", at(plainIP, 81))
	t.rejected(node.Place, "tcp", at(plainIP, 81))
	// What the node itself listens to is not reached by way of a Service's address.
	t.rejected(t.visitors[0].Place, "tcp", at(plainIP, 10256))
	t.rejected(node.Place, "tcp", at("127.0.0.1", plainPort))
}

// clients looks at the addresses that servers see.
func (t test) clients() {
	t.seen(t.visitors[0].Place, at(plainIP, 80), t.visitors[0].IP())
	t.seen(t.visitors[0].Place, at(plainIP6, 80), t.visitors[0].IP6())
	for range 6 { // servers on both nodes
		t.seen(t.cluster.Outside(), at(balancerIP, 80), t.cluster.Node(0).Address(), t.cluster.Node(0).PodGateway())
	}
}

// byAgent has the agents serve a Service themselves: IPVS has their listeners as real servers.
func (t test) byAgent() {
	policy := &v1alpha1.ServiceProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "relayed"}}
	policy.Spec.ServiceSelector = v1alpha1.LabelSelector{MatchLabels: map[string]string{"relay": "yes"}}
	policy.Spec.Overrides.Serving = new(v1alpha1.ServingUserspace)
	if err := t.cluster.Client().Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(t.cluster.Client().Delete(t.ctx, policy)); err != nil {
			t.Error(err)
		}
	})
	s := service("relayed", "web", func(s *corev1.ServiceSpec) { s.ClusterIP = t.newIP() })
	s.Labels = map[string]string{"relay": "yes"}
	t.create(s)
	node, address := t.cluster.Node(0), at(s.Spec.ClusterIP, 80)
	from := []*cluster.Place{t.visitors[0].Place, node.Place}
	t.until(func(ctx context.Context) error {
		if err := answer(ctx, from[0], "tcp", address); err != nil {
			return err
		}
		n, err := total(ctx, node, "nodeproxy_agent_userspace_connections_total")
		if err == nil && n == 0 {
			err = fmt.Errorf("the agent of %s does not serve the Service itself", node.Name())
		}
		return err
	})
	for _, place := range from {
		for range 3 { // servers on both nodes
			t.seen(place, address, node.Address(), node.PodGateway())
		}
		t.answered(place, "udp", address, "web-1", "web-2", "web-3")
	}
}
