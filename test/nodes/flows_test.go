package nodes

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// What the Service of this test answers on. The external addresses are on the
// nodes' own network, so that datagrams leave for them also without the Service.
const flowsPort, flowsNodePort = 53, 30053

var (
	flowsClusterIPs  = []string{"10.96.50.50", "fd00:10:96::5050"}
	flowsExternalIPs = []string{"172.20.0.240", "fd00:172:20::240"}
)

// TestUDPFlowsFollowTheirService keeps UDP sockets open, and sends all the
// time, while their Service comes, loses and gets endpoints, and goes: each
// datagram goes where a new socket's would.
func TestUDPFlowsFollowTheirService(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.startAgent()
	e.programmed()
	visitor := e.client("visitor")
	var flows []*udpFlow
	for _, ip := range flowsExternalIPs {
		early := e.flow(visitor, at(ip, flowsPort))
		early.send()
		e.until(func(context.Context) error { return early.tracked("[UNREPLIED]") })
		flows = append(flows, early)
	}
	service := e.createUDPService()
	for _, ip := range flowsClusterIPs {
		flows = append(flows, e.flow(visitor, at(ip, flowsPort)))
	}
	flows = append(flows,
		e.flow(visitor, e.node.AddressPort(flowsNodePort)),
		e.flow(visitor, e.node.AddressPort6(flowsNodePort)),
		e.flow(e.node.Place, at("127.0.0.1", flowsNodePort)),
		e.flow(e.nodeproxy.Cluster.Outside(), e.node.AddressPort(flowsNodePort)),
		e.flow(e.nodeproxy.Cluster.Outside(), e.node.AddressPort6(flowsNodePort)))
	one := e.server("one", "10.244.1.101")
	e.allAnswer(flows, "one")
	held, err := visitor.Connect(t.Context(), "tcp", one.Address(8080))
	if err != nil {
		load.FatalLoss(t, "TCP: %v", err)
	}
	defer held.Close()

	two := e.server("two", "10.244.1.102")
	if err := one.Terminate(t.Context()); err != nil { // serving until it is gone
		t.Fatal(err)
	}
	answer, err := held.Ask(t.Context())
	if err = cmp.Or(err, load.Planted()); err != nil {
		load.Lost(t, "TCP: %v, %v", answer, err)
	}
	if err := one.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.allAnswer(flows, "two")

	if err := two.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		e.until(func(context.Context) error { return f.untracked() })
	}
	e.server("three", "10.244.1.103")
	e.allAnswer(flows, "three")

	if err := e.nodeproxy.Cluster.Client().Delete(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		e.until(func(context.Context) error { return f.untracked() })
	}
}

// client runs a pod of no Service.
func (e *env) client(name string) *cluster.Place {
	e.Helper()
	pod, err := e.node.RunPod(e.Context(), cluster.PodSpec{Name: name})
	if err != nil {
		e.Fatal(err)
	}
	return pod.Place
}

// server runs an endpoint of the Service.
func (e *env) server(name, address string) *cluster.Pod {
	e.Helper()
	pod, err := e.node.RunPod(e.Context(), cluster.PodSpec{Name: name, Address: address, Labels: map[string]string{"app": "flows"}})
	if err != nil {
		e.Fatal(err)
	}
	return pod
}

func (e *env) createUDPService() *corev1.Service {
	e.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "flows"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ExternalIPs: flowsExternalIPs,
			ClusterIP: flowsClusterIPs[0], ClusterIPs: flowsClusterIPs, IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			Selector: map[string]string{"app": "flows"},
			Ports:    []corev1.ServicePort{{Protocol: corev1.ProtocolUDP, Port: flowsPort, NodePort: flowsNodePort, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if err := e.nodeproxy.Cluster.Client().Create(e.Context(), service); err != nil {
		e.Fatal(err)
	}
	return service
}

// udpFlow is a client's socket that stays open.
type udpFlow struct {
	*env
	conn *cluster.Conn
	from string
	to   string
}

func (e *env) flow(from *cluster.Place, to string) *udpFlow {
	e.Helper()
	conn, err := from.Connect(e.Context(), "udp", to)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _ = conn.Close() }) // the cluster may be gone
	return &udpFlow{env: e, conn: conn, from: from.Name(), to: to}
}

// send sends a datagram and does not mind whether anybody answers.
func (f *udpFlow) send() {
	ctx, cancel := context.WithTimeout(f.Context(), 200*time.Millisecond)
	defer cancel()
	_, _ = f.conn.Ask(ctx)
}

// allAnswer waits until every socket is answered by the server.
func (e *env) allAnswer(flows []*udpFlow, server string) {
	e.Helper()
	for _, f := range flows {
		e.until(func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			answer, err := f.conn.Ask(ctx)
			if err != nil {
				return fmt.Errorf("from %s to %s: %w; want an answer of %s", f.from, f.to, err, server)
			}
			if answer.Server != server {
				return fmt.Errorf("from %s to %s: answered by %s, want %s", f.from, f.to, answer, server)
			}
			return nil
		})
	}
}

func (f *udpFlow) destination() netip.AddrPort { return netip.MustParseAddrPort(f.to) }

func at(ip string, port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }

// tracked reports whether the node tracks the flow with text in its entry.
func (f *udpFlow) tracked(text string) error {
	for _, line := range f.entries() {
		if strings.Contains(line, text) {
			return nil
		}
	}
	return fmt.Errorf("from %s to %s: not tracked with %q: %q", f.from, f.to, text, f.entries())
}

// untracked sends a datagram and reports whether the node does not translate
// it.
func (f *udpFlow) untracked() error {
	f.send()
	host := f.destination().Addr().String()
	for _, line := range f.entries() {
		// The second one is of the answer.
		if parts := strings.Split(line, " src="); len(parts) != 3 || !strings.HasPrefix(parts[2], host+" ") {
			return fmt.Errorf("from %s to %s: still translated: %s", f.from, f.to, line)
		}
	}
	return nil
}

// entries are the node's entries of the flow's address and port.
func (f *udpFlow) entries() []string {
	f.Helper()
	to, family := f.destination(), "ipv4"
	if to.Addr().Is6() {
		family = "ipv6"
	}
	out := f.exec("conntrack", "-L", "-f", family, "-p", "udp", "--orig-dst", to.Addr().String(), "--dport", strconv.Itoa(int(to.Port())))
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return slices.DeleteFunc(lines, func(line string) bool { return !strings.HasPrefix(line, "udp") })
}
