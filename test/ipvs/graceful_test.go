package ipvs

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// TestGracefulRemoval takes a pod out of its Service: an open connection goes on,
// new ones go elsewhere, and the real server goes when the connection has ended.
func TestGracefulRemoval(tt *testing.T) {
	t := use(tt)
	d := t.drain()
	if got := t.ask(d.conn); got != d.pod.Name() {
		t.Errorf("the open connection is answered by %s, want %s", got, d.pod.Name())
	}
	if got := t.sequence(t.visitors[0].Place, "tcp", d.address, 12); slices.Contains(got, d.pod.Name()) {
		t.Errorf("new connections go to %v", got)
	}
	// Over UDP it is gone at once, though there were connections.
	t.weight(t.cluster.Node(0), "udp", d.address, d.backend, -1)

	// A comeback: in place, and the connection does not notice.
	t.ready(d.pod, true)
	t.weight(t.cluster.Node(0), "tcp", d.address, d.backend, 1)
	if got := t.ask(d.conn); got != d.pod.Name() {
		t.Errorf("after the comeback the open connection is answered by %s, want %s", got, d.pod.Name())
	}
	t.abort(t.reach(t.visitors[0].Place, d.address, d.pod.Name()))

	t.ready(d.pod, false)
	t.weight(t.cluster.Node(0), "tcp", d.address, d.backend, 0)
	t.ends(d)
}

// TestRestartWhileDraining kills the agent while a real server waits for its
// connections, and makes another expected one wait.
func TestRestartWhileDraining(tt *testing.T) {
	t := use(tt)
	d := t.drain()
	t.killAgent(0)
	node := t.cluster.Node(0)
	server := t.web[0].Address(8080)
	t.exec(node, "ipvsadm", "-e", "-t", d.address, "-r", server, "-m", "-w", "0")
	t.startAgent(0)
	t.weight(node, "tcp", d.address, server, 1)
	s, err := virtual(t.Context(), node, "tcp", d.address)
	if err != nil {
		t.Fatal(err)
	}
	if r, there := s.reals[d.backend]; !there || r.weight != 0 {
		t.Errorf("after a restart the real servers are %+v, want %s with weight 0", s.reals, d.backend)
	}
	if got := t.ask(d.conn); got != d.pod.Name() {
		t.Errorf("the open connection is answered by %s, want %s", got, d.pod.Name())
	}
	t.ends(d)
}

// drain is a real server that waits for a connection.
type drain struct {
	pod              *cluster.Pod
	conn             *cluster.Conn
	address, backend string
}

// drain makes a Service of which the pod web-3 ends while a connection to it is
// open.
func (t test) drain() drain {
	t.Helper()
	from, node := t.visitors[0].Place, t.cluster.Node(0)
	ip := t.newIP()
	d := drain{pod: t.web[2], address: at(ip, 80), backend: t.web[2].Address(8080)}
	t.create(service("draining", "web", func(s *corev1.ServiceSpec) { s.ClusterIP = ip }))
	d.conn = t.reach(from, d.address, d.pod.Name())
	t.answers(from, "udp", d.address, d.pod.Name())
	t.Cleanup(func() {
		if err := d.pod.SetReady(t.ctx, true); err != nil {
			t.Error(err)
		}
	})
	t.ready(d.pod, false)
	t.weight(node, "tcp", d.address, d.backend, 0)
	return d
}

// reach waits until an address answers, and then opens connections until one goes to a server, and keeps
// that. The others it aborts: IPVS remembers one that ends in good order for two minutes, which is how long
// a real server would wait for it.
func (t test) reach(from *cluster.Place, address, server string) *cluster.Conn {
	t.Helper()
	t.answers(from, "tcp", address, server)
	const most = 100
	for range most {
		conn, got := t.connect(from, "tcp", address)
		if got.Server == server {
			t.Cleanup(func() { _ = conn.Abort() }) // it may have ended
			return conn
		}
		t.abort(conn)
	}
	t.Fatalf("%s answers at %s none of %d times", server, address, most)
	return nil
}

func (t test) abort(conn *cluster.Conn) {
	t.Helper()
	if err := conn.Abort(); err != nil {
		t.Fatal(err)
	}
}

// ends ends the connection: the real server goes.
func (t test) ends(d drain) {
	t.Helper()
	t.abort(d.conn)
	t.weight(t.cluster.Node(0), "tcp", d.address, d.backend, -1)
}

// ready reports whether a pod is ready.
func (t test) ready(pod *cluster.Pod, ready bool) {
	t.Helper()
	if err := pod.SetReady(t.Context(), ready); err != nil {
		t.Fatal(err)
	}
}

// TestServiceEnds takes its virtual servers, address and entries with it.
func TestServiceEnds(tt *testing.T) {
	t := use(tt)
	ip := t.newIP()
	s := service("ending", "web", func(s *corev1.ServiceSpec) { s.ClusterIP = ip })
	t.create(s)
	t.answers(t.visitors[0].Place, "tcp", at(ip, 80))
	t.hold(t.visitors[0].Place, "tcp", at(ip, 80))
	if err := t.cluster.Client().Delete(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	t.until(func(ctx context.Context) error {
		left, err := t.traces(ctx, t.cluster.Node(0), ip)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("there still is: %q", left)
		}
		return err
	})
}
