package ipvs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// TestRoundRobin looks at the order.
func TestRoundRobin(tt *testing.T) {
	t := use(tt)
	from, ip := t.visitors[0].Place, t.newIP()
	t.create(service("rr", "web", func(s *corev1.ServiceSpec) { s.ClusterIP = ip }))
	t.answers(from, "tcp", at(ip, 80))
	got := t.sequence(from, "tcp", at(ip, 80), 9)
	if len(names(got[:3])) != 3 {
		t.Errorf("the first three connections go to %v", got[:3])
	}
	for i := range got[3:] {
		if got[i] != got[i+3] {
			t.Fatalf("connections go to %v in turn", got)
		}
	}
}

// TestSourceHashing changes the scheduler of all virtual servers in place. A client
// keeps its server, and different clients have different ones.
func TestSourceHashing(tt *testing.T) {
	t := use(tt)
	from := t.visitors[0]
	conn, server := t.hold(from.Place, "tcp", at(plainIP, 80))
	t.set(`"ipvs":{"scheduler":"sh"}`)
	t.scheduler("tcp", at(plainIP, 80), "sh")
	t.scheduler("tcp", t.cluster.Node(0).AddressPort(plainPort), "sh")
	t.scheduler("tcp", at(plainIP6, 80), "sh")
	if got := t.ask(conn); got != server {
		t.Errorf("the open connection has moved from %s to %s", server, got)
	}
	if got := t.sequence(from.Place, "tcp", at(plainIP, 80), 9); len(names(got)) != 1 {
		t.Errorf("connections of one client go to %v", got)
	}
	var all []string
	for _, place := range []*cluster.Place{t.visitors[0].Place, t.visitors[1].Place, t.cluster.Outside(), t.web[0].Place, t.web[1].Place, t.web[2].Place, t.local.Place} {
		all = append(all, t.sequence(place, "tcp", at(plainIP, 80), 1)...)
	}
	if len(names(all)) < 2 {
		t.Errorf("connections of all clients go to %v", all)
	}
}

// TestLeastConnections holds connections: a new one goes where the fewest are.
func TestLeastConnections(tt *testing.T) {
	t := use(tt)
	t.set(`"ipvs":{"scheduler":"lc"}`)
	from, ip := t.visitors[1].Place, t.newIP()
	t.create(service("lc", "web", func(s *corev1.ServiceSpec) { s.ClusterIP = ip }))
	t.until(func(ctx context.Context) error {
		s, err := virtual(ctx, t.cluster.Node(1), "tcp", at(ip, 80))
		if err == nil && len(s.reals) != 3 {
			err = fmt.Errorf("there are %d real servers", len(s.reals))
		}
		return err
	})
	conns := map[string][]*cluster.Conn{}
	for range 6 {
		conn, server := t.hold(from, "tcp", at(ip, 80))
		conns[server] = append(conns[server], conn)
	}
	for _, pod := range t.web {
		if len(conns[pod.Name()]) != 2 {
			t.Fatalf("%s has %d of 6 connections", pod.Name(), len(conns[pod.Name()]))
		}
	}
	// A connection that has ended counts less than one that is open.
	for _, conn := range conns["web-2"] {
		if err := conn.Abort(); err != nil {
			t.Fatal(err)
		}
	}
	t.until(func(ctx context.Context) error {
		s, err := virtual(ctx, t.cluster.Node(1), "tcp", at(ip, 80))
		if err == nil && s.reals[t.web[1].Address(8080)].active != 0 {
			err = fmt.Errorf("real servers are %+v", s.reals)
		}
		return err
	})
	for range 2 {
		if _, server := t.hold(from, "tcp", at(ip, 80)); server != "web-2" {
			t.Errorf("with no connection to web-2, a new one goes to %s", server)
		}
	}
}

// TestSchedulerOfAService writes one into its object. Policies will; for now only
// while no controller reverts it.
func TestSchedulerOfAService(tt *testing.T) {
	t := use(tt)
	ip := t.newIP()
	t.create(service("own", "web", func(s *corev1.ServiceSpec) { s.ClusterIP = ip }))
	t.answers(t.visitors[0].Place, "tcp", at(ip, 80))
	if err := t.controller.Stop(); err != nil {
		t.Fatal(err)
	}
	defer t.startController()

	t.schedulerOf("own", "lc")
	t.scheduler("tcp", at(ip, 80), "lc")
	t.scheduler("tcp", at(plainIP, 80), "rr")

	// One that the kernel lacks: the Service runs with the node's, and the node reports it.
	t.schedulerOf("own", "twos")
	t.scheduler("tcp", at(ip, 80), "rr")
	t.answers(t.visitors[0].Place, "tcp", at(ip, 80), "web-1", "web-2", "web-3")
	t.status(t.cluster.Node(0), func(s *v1alpha1.NodeProxyRulesStatus) error {
		for _, c := range s.Conditions {
			if strings.Contains(c.Message, "twos") && strings.Contains(c.Message, "own") {
				return nil
			}
		}
		return fmt.Errorf("no condition names the scheduler and the Service: %+v, rejected %+v", s.Conditions, s.Rejected)
	})
}

// startController starts the controller again.
func (t test) startController() {
	t.Helper()
	var err error
	if t.controller, err = t.nodeproxy.StartController(); err != nil {
		t.Fatal(err)
	}
	t.until(t.programmed)
}

// schedulerOf sets the scheduler of a Service's object.
func (t test) schedulerOf(name, scheduler string) {
	t.Helper()
	rules := &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault + "." + name}}
	patch := fmt.Sprintf(`{"spec":{"ipvsScheduler":%q}}`, scheduler)
	if err := t.cluster.Client().Patch(t.Context(), rules, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

// scheduler waits until a virtual server of the first node has a scheduler.
func (t test) scheduler(network, address, want string) {
	t.Helper()
	t.until(func(ctx context.Context) error {
		s, err := virtual(ctx, t.cluster.Node(0), network, address)
		if err == nil && !strings.Contains(s.rule+" ", "-s "+want+" ") {
			err = fmt.Errorf("%s is %q, want scheduler %s", key(network, address), s.rule, want)
		}
		return err
	})
}

// TestPersistence lets a client's record end: the next connection goes elsewhere.
// Records live as long as their connections do, so those are of UDP, which ends
// after a silence.
func TestPersistence(tt *testing.T) {
	t := use(tt)
	t.set(`"ipvs":{"udpTimeoutSeconds":2}`)
	ip := t.newIP()
	from, address := t.visitors[0].Place, at(ip, 80)
	t.create(service("short", "web", func(s *corev1.ServiceSpec) {
		s.ClusterIP, s.SessionAffinity = ip, corev1.ServiceAffinityClientIP
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(2))}}
	}))
	t.answers(from, "udp", address)
	got := t.sequence(from, "udp", address, 6)
	if len(names(got)) != 1 {
		t.Fatalf("connections go to %v", got)
	}
	s, err := virtual(t.Context(), t.cluster.Node(0), "udp", address)
	if err != nil {
		t.Fatal(err)
	}
	if want := "-s rr -p 2"; s.rule != want {
		t.Errorf("the virtual server is %q, want %q", s.rule, want)
	}
	t.until(func(ctx context.Context) error {
		text, err := t.cluster.Node(0).Exec(ctx, "ipvsadm", "-L", "-n", "-c")
		if err == nil && strings.Contains(text, address) {
			err = errors.New("the client is still known: " + text)
		}
		return err
	})
	if next := t.sequence(from, "udp", address, 1)[0]; next == got[0] {
		t.Errorf("after the record has ended the client still goes to %s", next)
	}
}

// TestUnknownScheduler: an unknown scheduler is invalid.
func TestUnknownScheduler(tt *testing.T) {
	t := use(tt)
	err := t.patch(t.Context(), `{"spec":{"settings":{"ipvs":{"scheduler":"robin"}}}}`)
	if err == nil || !strings.Contains(err.Error(), "settings.ipvs.scheduler must be") {
		t.Errorf("the API server reports %v", err)
	}
}
