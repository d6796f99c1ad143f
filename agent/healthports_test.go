package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// freePort returns an unused port.
func freePort(t *testing.T) int32 {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // nothing was done with it
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// balanced makes a Service one of a load balancer that asks port.
func balanced(port int32) func(*v1alpha1.ServiceProxyRulesSpec) {
	return func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.ExternalTrafficPolicy, s.HealthCheckNodePort = v1alpha1.TrafficPolicyLocal, port
	}
}

// withLocalEndpoints makes endpoints of shop/a such of the node.
func withLocalEndpoints(endpoints ...string) func(*v1alpha1.NodeProxyRulesSpec) {
	return func(s *v1alpha1.NodeProxyRulesSpec) {
		s.LocalEndpoints = []v1alpha1.ServiceLocalEndpoints{{Namespace: "shop", Name: "a", Ports: []v1alpha1.PortLocalEndpoints{
			{Name: "http", Protocol: v1alpha1.ProtocolTCP, Endpoints: endpoints}}}}
	}
}

// asked returns the answer that a load balancer gets on port: status and weight, "closed" if
// none answers.
func asked(port int32) string {
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
	if err != nil {
		return "closed"
	}
	defer func() { _ = response.Body.Close() }() // not read
	return fmt.Sprintf("%d %s", response.StatusCode, response.Header.Get("X-Load-Balancing-Endpoint-Weight"))
}

func expectAnswer(t *testing.T, port int32, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if got = asked(port); got == want {
			return
		}
	}
	t.Fatalf("port %d answers %q, want %q", port, got, want)
}

func expectWarning(t *testing.T, a *Agent, text string) {
	t.Helper()
	message := ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		c := status.ProgrammedCondition(a.refresh())
		if message = c.Message; c.Status == metav1.ConditionTrue && strings.Contains(message, text) {
			return
		}
	}
	t.Fatalf("Programmed is %q, want %q", message, text)
}

func TestHealthCheckNodePorts(t *testing.T) {
	a, r, kernel, _ := owningAgent(t)
	ctx, lose := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.runChecks(ctx) }()
	port := freePort(t)
	r.SetRules(r.Node(withLocalEndpoints("10.244.1.1:8080", "10.244.9.9:8080", "10.244.1.7:8080")))
	r.SetService(r.Service("a", 1, balanced(port)))
	if got := asked(port); got != "closed" {
		t.Errorf("before the first write: %s", got)
	}
	mustSync(t, a)
	expectAnswer(t, port, "200 2") // 10.244.1.7 is not ready

	r.SetService(r.Service("a", 1, balanced(port), func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.Ports[0].Endpoints[0].State = v1alpha1.EndpointTerminating
	}))
	mustSync(t, a)
	expectAnswer(t, port, "503 0") // row 145

	kernel.Fail(errors.New("locked"))
	r.SetService(r.Service("a", 1, balanced(port)))
	if err := a.sync(context.Background()); err == nil {
		t.Fatal("no error")
	}
	expectAnswer(t, port, "503 0") // not what the kernel lacks
	kernel.Fail(nil)
	mustSync(t, a)
	expectAnswer(t, port, "200 2")

	other := freePort(t)
	r.SetService(r.Service("a", 1, balanced(other)))
	mustSync(t, a)
	expectAnswer(t, other, "200 2")
	expectAnswer(t, port, "closed") // row 148

	lose()
	<-done
	expectAnswer(t, other, "closed")
	ctx, lose = context.WithCancel(t.Context())
	defer lose()
	go a.runChecks(ctx)
	mustSync(t, a) // with nothing to write
	expectAnswer(t, other, "200 2")
}

func TestHealthCheckOfARejectedService(t *testing.T) {
	a, r, kernel, _ := owningAgent(t)
	go a.runChecks(t.Context())
	port := freePort(t)
	r.SetRules(r.Node(withLocalEndpoints("10.244.1.1:8080", "10.244.9.9:8080")))
	kernel.Reject("shop", "a", "line 3 failed")
	r.SetService(r.Service("a", 1, balanced(port)))
	mustSync(t, a)
	expectAnswer(t, port, "503 0") // the kernel has nothing of it
	kernel.Reject("shop", "a", "")
	r.SetService(r.Service("a", 1, balanced(port), func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.Ports[0].Endpoints[0].Addresses = s.Ports[0].Endpoints[0].Addresses[:1]
	}))
	mustSync(t, a)
	expectAnswer(t, port, "200 1")
	kernel.Reject("shop", "a", "line 3 failed")
	r.SetService(r.Service("a", 1, balanced(port)))
	mustSync(t, a)
	expectAnswer(t, port, "200 1") // the former rules serve one
}

// TestHealthCheckOfAContestedService: another Service has an address and port of it, which may be
// the doing of another tenant. All else of it is programmed.
func TestHealthCheckOfAContestedService(t *testing.T) {
	a, r, kernel, _ := owningAgent(t)
	go a.runChecks(t.Context())
	port := freePort(t)
	r.SetRules(r.Node(withLocalEndpoints("10.244.1.1:8080", "10.244.9.9:8080")))
	kernel.Reduce("shop", "a", "192.0.2.1:80/TCP "+v1alpha1.ServedForAnother+" other/b")
	r.SetService(r.Service("a", 1, balanced(port)))
	mustSync(t, a)
	expectAnswer(t, port, "200 2")
}

// TestHealthCheckAfterAReboot: until the API answers, load balancers are sent
// elsewhere.
func TestHealthCheckAfterAReboot(t *testing.T) {
	a, _, _ := newAgent(t, (&answers{list: []string{""}}).probe)
	r := &rig{Store: a.store, t: t, Objects: agenttest.Objects{Version: 10}}
	port := freePort(t)
	g := r.Checkpoint(true)
	balanced(port)(&g.Services[0].Spec)
	r.mustRestore(g)
	hold(t, a)
	go a.runChecks(t.Context())
	mustSync(t, a)
	expectAnswer(t, port, "503 0")
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1, balanced(port))})
	r.SetInventory(agenttest.InventoryOf("shop.a"))
	r.SetRules(r.Node(withLocalEndpoints("10.244.1.1:8080", "10.244.9.9:8080")))
	mustSync(t, a)
	expectAnswer(t, port, "200 2")
}

func TestHealthCheckUnhealthy(t *testing.T) { // row 146
	clk := clocktesting.NewFakeClock(time.Now())
	a, kernel, _ := newAgentAt(t, (&answers{list: []string{""}}).probe, clk)
	r := fill(t, a)
	hold(t, a)
	go a.runChecks(t.Context())
	port := freePort(t)
	r.SetRules(r.Node(withLocalEndpoints("10.244.1.1:8080", "10.244.9.9:8080")))
	r.SetService(r.Service("a", 1, balanced(port)))
	mustSync(t, a)
	expectAnswer(t, port, "200 2")
	kernel.Fail(errors.New("locked"))
	r.SetService(r.Service("b", 2))
	clk.Step(pendingLimit)
	if err := a.sync(context.Background()); err == nil {
		t.Fatal("no error")
	}
	expectAnswer(t, port, "503 2")
}

func TestHealthCheckPortInUseIsWarnedOf(t *testing.T) {
	a, r, _, log := owningAgent(t)
	go a.runChecks(t.Context())
	holder, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close() }()
	taken, free := int32(holder.Addr().(*net.TCPAddr).Port), freePort(t)
	r.SetRules(r.Node(withLocalEndpoints("10.244.1.1:8080")))
	r.SetService(r.Service("a", 1, balanced(free)))
	r.SetService(r.Service("b", 2, balanced(taken)))
	mustSync(t, a)
	expectAnswer(t, free, "200 1")
	expectWarning(t, a, fmt.Sprintf("health-check node port %d of Service shop/b", taken))
	if n := len(log.With("Could not open")); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

func TestOlderServiceHasTheHealthCheckNodePort(t *testing.T) {
	a, r, kernel, _ := owningAgent(t)
	port := freePort(t)
	older := func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.ServiceCreated = metav1.NewTime(agenttest.Epoch.Add(-time.Hour))
	}
	r.SetService(r.Service("a", 1, balanced(port)))
	r.SetService(r.Service("b", 2, balanced(port), older))
	mustSync(t, a)
	if a, b := kernel.Service("shop", "a").HealthCheckNodePort, kernel.Service("shop", "b").HealthCheckNodePort; a != 0 || int32(b) != port {
		t.Errorf("the port of a is %d, of b %d", a, b)
	}
	r.SetService(r.Service("b", 2, older))
	mustSync(t, a)
	if got := kernel.Service("shop", "a").HealthCheckNodePort; int32(got) != port {
		t.Errorf("the port of a is %d once b has given it up", got)
	}
}

func TestHealthCheckAddresses(t *testing.T) {
	var local []netip.Addr
	for _, text := range []string{"192.0.2.22", "127.0.0.1", "192.0.2.21", "192.0.2.21", "198.51.100.1", "2001:db8::21", "fe80::1", "::1"} {
		local = append(local, netip.MustParseAddr(text))
	}
	tests := []struct {
		family dataplane.Family
		cidrs  []string
		want   string
	}{
		{dataplane.IPv4, []string{"192.0.2.0/24", "2001:db8::/32"}, "[192.0.2.21 192.0.2.22]"},
		{dataplane.IPv4, []string{"127.0.0.0/8"}, "[127.0.0.1]"},
		{dataplane.IPv4, []string{"203.0.113.0/24"}, "[]"},
		{dataplane.IPv6, []string{"192.0.2.0/24", "2001:db8::/32", "fe80::/10"}, "[2001:db8::21]"},
		{dataplane.IPv6, []string{"::1/128"}, "[::1]"},
	}
	for _, tt := range tests {
		r := newRig(t)
		r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) {
			s.Settings.NodePorts = &v1alpha1.NodePortSettings{AddressMode: new(v1alpha1.NodePortsCIDRs), CIDRs: tt.cidrs, Localhost: new(v1alpha1.Disabled)}
		}))
		object := r.Snapshot().Own.Spec
		node := combine.Facts(&object.Node, v1alpha1.CompleteSettings(&object.Settings), tt.family)
		nodePorts, err := dataplane.NodePortsOf(tt.family, &node)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(answering(nodePorts, local)); got != tt.want {
			t.Errorf("%s %v: %s, want %s", tt.family, tt.cidrs, got, tt.want)
		}
	}
}

func TestEligibleByTheLastSeenObject(t *testing.T) {
	r := newRig(t)
	expect := func(when string, want bool) {
		t.Helper()
		if got := r.Health().Eligible; got != want {
			t.Errorf("%s: eligible %v, want %v", when, got, want)
		}
	}
	draining := func(s *v1alpha1.NodeProxyRulesSpec) { s.Node.Draining = true }
	expect("never seen", false)
	r.SetRules(r.Node())
	expect("seen", true)
	r.MissRules()
	expect("gone", true)
	r.SetRules(r.Node(draining))
	expect("draining", false)
	r.MissRules()
	expect("gone while draining", false)
	r.SetRules(r.Node(draining, func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 99 }))
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 99 }))
	expect("in use again, though in a format that is not known", true)
}
