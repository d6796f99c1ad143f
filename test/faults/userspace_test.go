package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

func userspaceFaults() []fault {
	return []fault{
		{name: "userspace-endpoint-fails", title: "one of three endpoints dead, black-holed, slow, resetting; the agent serves the Service", repair: 30 * time.Second, inject: endpointFails},
		{name: "userspace-agent-killed", title: "an agent that serves a Service killed (-9), and restarted", repair: 30 * time.Second,
			allowed: "of that Service, until it serves again", inject: servingAgentKilled},
	}
}

const (
	// greetingPort is where greeters listen.
	greetingPort = 9090
	// greetings is how many connections are made to each of two Services while an endpoint fails in one way, and
	// greetingPace how many of them in a second.
	greetings, greetingPace = 2500, 800
	// directPatience is shorter than load.Patience: what the kernel loses does not come later.
	directPatience = 2 * time.Second
	// fewestLost of a hundred connections fail without an agent that retries them, or the fault is none.
	fewestLost = 10
)

// endpointFails has one of three endpoints fail in several ways. Clients of a Service that the agent serves must
// not notice; those of the same endpoints in mode IPTables do.
func endpointFails(r *run) {
	node, pods := r.cluster.Node(0), r.changing[:3] // which nothing changes meanwhile
	var failing *greeter
	for _, pod := range pods {
		failing = r.greet(pod)
	}
	rule := []string{"INPUT", "--protocol", "tcp", "--dport", fmt.Sprint(greetingPort)}
	for _, way := range []struct{ name, rule string }{
		{"dead", "--jump REJECT --reject-with tcp-reset"},
		{"black-holed", "--jump DROP"},
		{"slow", "--syn --match statistic --mode random --probability 0.75 --jump DROP"}, // it accepts a later try
		{"resetting", ""},
	} {
		// In each way another Service, of which no endpoint has failed before.
		relayed, direct := "relayed-"+way.name, "direct-"+way.name
		served, alone := r.byHand(relayed, greetingPort, pods), r.byHand(direct, greetingPort, pods)
		end := r.relay(relayed, node, func(ctx context.Context) error { return greeted(ctx, visitor(node).Place, served, load.Patience) })
		r.until(20*time.Second, func(ctx context.Context) error { return greeted(ctx, visitor(node).Place, alone, load.Patience) })
		rule := append(slices.Clone(rule), strings.Fields(way.rule)...)
		if way.rule == "" {
			failing.resets.Store(true)
		} else {
			r.inPod(pods[len(pods)-1], "--append", rule)
		}
		var both sync.WaitGroup
		var lost, without []error
		both.Go(func() { lost = r.greetAll(node, served, load.Patience) })
		both.Go(func() { without = r.greetAll(node, alone, directPatience) })
		both.Wait()
		if way.rule != "" {
			r.inPod(pods[len(pods)-1], "--delete", rule)
		}
		r.remark("%s: %d of %d failed, with %d retries; in mode IPTables %d", way.name, len(lost), greetings,
			r.counted(node, "retries", relayed), len(without))
		r.tried, r.failed = r.tried+greetings, r.failed+len(lost)
		for _, err := range lost[:min(len(lost), 10)] {
			r.Errorf("%s: %v", way.name, err)
		}
		if len(lost) > 0 {
			load.Lost(r, "%d of %d connections failed while one of three endpoints was %s", len(lost), greetings, way.name)
		}
		if len(without)*100 < greetings*fewestLost {
			r.Errorf("%s: in mode IPTables only %d of %d connections failed: this proves too little", way.name, len(without), greetings)
		}
		end()
		r.deleteByHand(direct)
	}
}

// servingAgentKilled kills an agent that serves a Service itself. Until it is back, open connections end, and new
// ones are rejected at once; connections to other Services do not fail.
func servingAgentKilled(r *run) {
	node := r.cluster.Node(0)
	const relayed = "relayed"
	target := load.Target{Name: relayed, From: visitor(node).Place, Via: node.Name(), Network: "tcp", Address: r.byHand(relayed, 8080, r.changing[:3])}
	end := r.relay(relayed, node, target.Try)
	own, err := load.Start(r.ctx, pace, []load.Target{target})
	r.must(err)
	defer own.End()
	r.until(20*time.Second, func(context.Context) error { return own.WellSince(own.Begun()) })
	killed := time.Now()
	r.must(r.agents[node.Name()].Kill())
	r.until(10*time.Second, func(ctx context.Context) error {
		switch err := target.Try(ctx); {
		case err == nil:
			return errors.New("without an agent, its Service accepts connections")
		case !errors.Is(err, cluster.ErrRejected):
			return fmt.Errorf("without an agent, a connection to its Service is not rejected: %w", err)
		}
		return nil
	})
	r.must(r.startAgent(node))
	r.ended = time.Now()
	r.until(r.fault.repair, r.reported)
	r.until(r.fault.repair, target.Try)
	back := time.Now()
	r.until(20*time.Second, func(context.Context) error { return own.WellSince(back) })
	own.End()
	failures := own.Failures()
	for _, f := range failures {
		switch {
		case errors.Is(f.Err, cluster.ErrNoAnswer):
			load.Lost(r, "it waits for an agent that has ended: %s", f)
		case !f.Held && (f.Begun.After(back) || f.Begun.Add(f.Took).Before(killed)):
			load.Lost(r, "the agent was killed at %s, and served again at %s: %s", killed.Format("15:04:05.000"), back.Format("15:04:05.000"), f)
		}
	}
	r.remark("new connections to its Service failed for %.1f s", own.LastFailure().Sub(killed).Seconds())
	r.tried, r.failed = r.tried+own.Total(), r.failed+len(failures)
	end()
}

// byHand makes a Service of these endpoints, and returns where it answers.
func (r *run) byHand(name string, port int32, pods []*cluster.Pod) string {
	r.Helper()
	var addresses []string
	for _, pod := range pods {
		addresses = append(addresses, pod.IP())
	}
	_, err := r.makeByHand(name, port, [][]string{addresses})
	r.must(err)
	service := &corev1.Service{}
	r.must(r.cluster.Client().Get(r.ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: name}, service))
	return net.JoinHostPort(service.Spec.ClusterIP, "80")
}

// relay has the agents serve a Service themselves, and waits until a node's does, by which connect connects. End
// deletes the Service.
func (r *run) relay(name string, node *cluster.Node, connect func(context.Context) error) (end func()) {
	r.Helper()
	_, err := r.cluster.Kubectl(r.ctx, "label", "service", name, "relay="+name)
	r.must(err)
	policy := &v1alpha1.ServiceProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	policy.Spec.ServiceSelector = v1alpha1.LabelSelector{MatchLabels: map[string]string{"relay": name}}
	policy.Spec.Overrides.Serving = new(v1alpha1.ServingUserspace)
	r.must(r.cluster.Client().Create(r.ctx, policy))
	r.until(time.Minute, func(ctx context.Context) error {
		if err := connect(ctx); err != nil {
			return err
		}
		if r.counted(node, "connections", name) == 0 {
			return fmt.Errorf("the agent of %s does not serve Service %s itself", node.Name(), name)
		}
		return nil
	})
	return func() {
		r.must(r.cluster.Client().Delete(r.ctx, policy))
		r.deleteByHand(name)
	}
}

// counted is what an agent has counted of a Service that it serves itself.
func (r *run) counted(node *cluster.Node, what, service string) int {
	r.Helper()
	n, err := node.Total(r.ctx, "http://127.0.0.1:19256/metrics", fmt.Sprintf(`nodeproxy_agent_userspace_%s_total\{.*service=%q\}`, what, service))
	r.must(err)
	return n
}

// inPod changes the rules of a pod.
func (r *run) inPod(pod *cluster.Pod, command string, rule []string) {
	r.Helper()
	_, err := pod.Exec(r.ctx, "iptables", slices.Concat([]string{"--wait", command}, rule)...)
	r.must(err)
}

// greetAll makes connections from a pod of a node, and returns how some have failed.
func (r *run) greetAll(node *cluster.Node, address string, patience time.Duration) (failed []error) {
	var mu sync.Mutex // guards failed
	var group sync.WaitGroup
	tick := time.NewTicker(time.Second / greetingPace)
	defer tick.Stop()
	for range greetings {
		<-tick.C
		group.Go(func() {
			if err := greeted(context.WithoutCancel(r.ctx), visitor(node).Place, address, patience); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			}
		})
	}
	group.Wait()
	return failed
}

// greeted connects, and returns nil if a greeter greets.
func greeted(ctx context.Context, from *cluster.Place, address string, patience time.Duration) error {
	until := time.Now().Add(patience)
	var conn net.Conn
	err := from.Do(func() (err error) {
		conn, err = (&net.Dialer{Deadline: until}).DialContext(ctx, "tcp", address)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(until); err != nil {
		return err
	}
	switch text, err := io.ReadAll(conn); {
	case err != nil:
		return err
	case string(text) != greeting:
		return fmt.Errorf("%s greets with %q", address, text)
	}
	return nil
}

// greeting is what greeters send.
const greeting = "hello\n"

// greeter is a server that speaks first, like those of SSH and MySQL: nothing was transferred when it resets a
// connection.
type greeter struct{ resets atomic.Bool }

// greet has a pod greet at greetingPort until the test ends.
func (r *run) greet(pod *cluster.Pod) *greeter {
	r.Helper()
	var listener net.Listener
	r.must(pod.Do(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(r.ctx, "tcp", pod.Address(greetingPort))
		return err
	}))
	g := &greeter{}
	var running sync.WaitGroup
	running.Go(func() { g.serve(listener) })
	r.Cleanup(func() {
		_ = listener.Close() // it only listened
		running.Wait()
	})
	return g
}

func (g *greeter) serve(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		if g.resets.Load() {
			_ = conn.(*net.TCPConn).SetLinger(0)
		} else {
			_, _ = io.WriteString(conn, greeting) // a client without it reports that
		}
		_ = conn.Close()
	}
}
