package nodes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/parity/beside"
)

// status is what a node reports.
func (k *take) status(ctx context.Context, node *cluster.Node) (v1alpha1.NodeProxyRulesStatus, error) {
	rules := &v1alpha1.NodeProxyRules{}
	err := k.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules)
	return rules.Status, err
}

// reports waits until Programmed of every node has a reason, and its message or an
// example of what differs holds text.
func (k *take) reports(reason, text string) {
	k.Helper()
	for _, node := range k.cluster.Nodes() {
		k.until(func(ctx context.Context) error {
			if err := install.Running(k.run...); err != nil {
				return err
			}
			status, err := k.status(ctx, node)
			if err != nil {
				return err
			}
			c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
			reported := ""
			if c != nil {
				reported = c.Message
			}
			if d := status.Difference; d != nil {
				reported += "\n" + strings.Join(d.Examples, "\n")
			}
			if c == nil || c.Reason != reason || !strings.Contains(reported, text) {
				return fmt.Errorf("%s: Programmed is %+v, difference %+v, want %s: …%s…", node.Name(), c, status.Difference, reason, text)
			}
			return nil
		})
	}
}

// count is a metric of a node's agent, also while another proxy runs; 0: no agent runs.
func (k *take) count(node *cluster.Node, metric string) int {
	k.Helper()
	n, err := node.Total(k.Context(), "http://127.0.0.1:19256/metrics", metric)
	if err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
		k.Fatal(err)
	}
	return n
}

// looks counts how often an agent goes around, whether it writes or not.
const looks = "nodeproxy_agent_other_proxy_checks_total"

// silence empties the notes of what the agents write.
func (k *take) silence() {
	k.looked = map[string]int{}
	for _, node := range k.cluster.Nodes() {
		if err := os.WriteFile(k.note(node), nil, 0o600); err != nil {
			k.Fatal(err)
		}
		k.looked[node.Name()] = k.count(node, looks)
	}
}

// silent fails if an agent has written anything since silence. Each must have looked: one that only
// compares calls nothing that is noted.
func (k *take) silent(when string) {
	k.Helper()
	for _, node := range k.cluster.Nodes() {
		k.until(func(context.Context) error {
			if n := k.count(node, looks); n < k.looked[node.Name()]+2 {
				return fmt.Errorf("%s: the agent has looked %d times, %d of them before", node.Name(), n, k.looked[node.Name()])
			}
			return nil
		})
		text, err := os.ReadFile(k.note(node))
		if err != nil {
			k.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); !readOnly.MatchString(line) {
				k.Errorf("%s: %s: the agent has written %q", node.Name(), when, line)
				break
			}
		}
	}
}

// follow makes a Service and waits until every node has the rules for all its endpoints,
// written by either proxy.
func (k *take) follow(name, ip string) {
	k.Helper()
	k.service(name, func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = ip, nil })
	endpoints := 0 // for both IP families, of both ports
	for _, node := range k.cluster.Nodes() {
		for _, pod := range node.Pods() {
			if strings.HasPrefix(pod.Name(), "web-") {
				endpoints += 4
			}
		}
	}
	for _, node := range k.cluster.Nodes() {
		k.until(func(context.Context) error {
			got := 0
			for _, line := range k.saved(node) {
				if strings.Contains(line, "default/"+name+":") && strings.Contains(line, "--to-destination") {
					got++
				}
			}
			if got < endpoints {
				return fmt.Errorf("%s has rules for %d endpoints of %s, want %d", node.Name(), got, name, endpoints)
			}
			return nil
		})
	}
}

// removeRule removes the first rule of nat KUBE-SERVICES by hand.
func (k *take) removeRule(node *cluster.Node) {
	k.Helper()
	if _, err := node.Exec(k.Context(), filepath.Join(k.usual(node), "iptables"), "-w", "-t", "nat", "-D", "KUBE-SERVICES", "1"); err != nil {
		k.Fatal(err)
	}
}

// answers reports whether a program accepts connections at a port of the node's
// loopback address.
func (k *take) answers(node *cluster.Node, port string) bool {
	var conn net.Conn
	err := node.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", "127.0.0.1:"+port, time.Second)
		return err
	})
	if err == nil {
		_ = conn.Close() // nothing was written
	}
	return err == nil
}

// ports waits until the proxy's ports are open, or closed, on every node.
func (k *take) ports(open bool) {
	k.Helper()
	for _, node := range k.cluster.Nodes() {
		for _, port := range []string{"10249", "10256"} {
			k.until(func(context.Context) error {
				if k.answers(node, port) != open {
					return fmt.Errorf("%s: port %s answers: %v, want %v", node.Name(), port, !open, open)
				}
				return nil
			})
		}
	}
}

// started runs f and returns the processes that it has started.
func (k *take) started(f func()) []*cluster.Process {
	before := len(k.run)
	f()
	return slices.Clone(k.run[before:])
}

// end stops some of the processes.
func (k *take) end(processes []*cluster.Process) {
	k.Helper()
	for _, p := range processes {
		if err := p.Stop(); err != nil {
			k.Error(err)
		}
	}
	k.run = slices.DeleteFunc(k.run, func(p *cluster.Process) bool { return slices.Contains(processes, p) })
}

// TestKubeProxyStartsBesideTheAgent: the real kube-proxy is started on nodes
// where the agent has its turn, serves them alone while it runs, and is taken
// over from when it stops. One node is of either variant of iptables.
func TestKubeProxyStartsBesideTheAgent(t *testing.T) {
	t.Parallel()
	k := newTakeover(t)
	for _, node := range k.cluster.Nodes() {
		k.makeOthersRules(node)
	}
	k.makeServices()
	k.startAgents()
	k.ports(true)
	start := time.Now()
	proxies := k.started(k.startKubeProxies)
	t.Logf("kube-proxy has its ports and has written all after %s", time.Since(start).Round(100*time.Millisecond))
	k.reports(v1alpha1.ReasonConflictingProxy, "KUBE-PROXY-CANARY")
	k.reports(v1alpha1.ReasonConflictingProxy, `answers "iptables"`)

	k.silence()
	for _, node := range k.cluster.Nodes() {
		k.removeRule(node) // which the agent would repair
	}
	k.follow("beside", "10.96.77.7")
	k.follow("beside-2", "10.96.77.8")
	k.silent("beside kube-proxy")

	start = time.Now()
	k.silence()
	k.end(proxies)
	k.reports(v1alpha1.ReasonConflictingProxy, "has not been detected since")
	k.silent("within 10 s after kube-proxy has stopped")
	k.reports(v1alpha1.ReasonProgrammed, "")
	if took := time.Since(start); took < 9*time.Second {
		t.Errorf("taken over after %s already", took)
	}
	t.Logf("the agents have taken over %s after kube-proxy was stopped", time.Since(start).Round(100*time.Millisecond))
	k.nothingWritten("taking over")
	k.ports(true)
	k.follow("after", "10.96.77.9")
}

// TestOtherProxysDevice: kube-ipvs0 shows a kube-proxy if it appears; one that is
// left behind does not. No message asks to remove it.
func TestOtherProxysDevice(t *testing.T) {
	t.Parallel()
	e := start(t)
	agent := e.startAgent()
	e.programmed()
	if _, err := e.node.Exec(t.Context(), "ip", "link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "other0"); err != nil {
		t.Fatal(err)
	}
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonConflictingProxy, "device kube-ipvs0 has appeared")
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
	if _, err := e.node.Exec(t.Context(), "ip", "link", "del", "kube-ipvs0"); err != nil {
		t.Fatal(err)
	}
	if err := agent.Stop(); err != nil {
		t.Fatal(err)
	}
	e.startAgent()
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
}

// TestAudit compares beside the real kube-proxy while objects change, finds what
// is changed by hand, and goes to Enforce and back without a restart.
func TestAudit(t *testing.T) {
	t.Parallel()
	k := newTakeover(t)
	k.makeServices()
	proxies := k.started(k.startKubeProxies)
	k.patch(`{"spec":{"settings":{"enforcement":"Audit"}}}`)
	k.silence()
	var agents []*cluster.Process
	for _, node := range k.cluster.Nodes() {
		command := k.agentCommand(node)
		command.Args = append(command.Args, "-v", "2") // see beside.Audits
		process, err := node.Start(command)
		if err != nil {
			t.Fatal(err)
		}
		agents = append(agents, process)
	}
	k.run = append(k.run, agents...)
	k.reports(v1alpha1.ReasonAuditInSync, `another proxy runs on this node (http://127.0.0.1:10249/proxyMode answers "iptables")`)
	k.inSyncDuring(agents, k.churn)
	for _, node := range k.cluster.Nodes() {
		status, err := k.status(t.Context(), node)
		if err != nil || status.SettingsRevision == "" || status.Services < 35 || status.Difference == nil {
			t.Errorf("%s: status %+v, %v", node.Name(), status, err)
		}
	}

	start := time.Now()
	for _, node := range k.cluster.Nodes() {
		k.removeRule(node)
	}
	k.reports(v1alpha1.ReasonAuditDiffers, "rule missing in KUBE-SERVICES of nat")
	t.Logf("a rule that was removed by hand is reported after %s", time.Since(start).Round(100*time.Millisecond))
	k.follow("repairs", "10.96.77.7") // kube-proxy writes that chain anew
	k.reports(v1alpha1.ReasonAuditInSync, "another proxy runs")

	k.end(proxies)
	k.reports(v1alpha1.ReasonAuditInSync, "no program maintains the rules")
	k.ports(false)
	for _, node := range k.cluster.Nodes() {
		k.removeRule(node)
	}
	k.reports(v1alpha1.ReasonAuditDiffers, "no program maintains the rules")
	k.silent("with Audit")

	k.patch(`{"spec":{"settings":{"enforcement":null}}}`)
	k.reports(v1alpha1.ReasonProgrammed, "The desired state is programmed")
	k.ports(true)
	k.patch(`{"spec":{"settings":{"enforcement":"Audit"}}}`)
	k.reports(v1alpha1.ReasonAuditInSync, "no program maintains the rules")
	k.ports(false)
	k.silence()
	for _, node := range k.cluster.Nodes() {
		k.removeRule(node)
	}
	k.reports(v1alpha1.ReasonAuditDiffers, "rule missing")
	k.silent("with Audit again")
	k.patch(`{"spec":{"settings":{"enforcement":null}}}`)
	k.reports(v1alpha1.ReasonProgrammed, "")
	k.ports(true)
}

// audits counts how often each agent has compared.
func (k *take) audits(agents []*cluster.Process) (counts []int) {
	k.Helper()
	for _, agent := range agents {
		count, err := beside.Audits(agent)
		if err != nil {
			k.Fatal(err)
		}
		counts = append(counts, count)
	}
	return counts
}

// inSyncDuring fails if a node reports anything but AuditInSync, without a
// difference, while f runs and for some time after.
func (k *take) inSyncDuring(agents []*cluster.Process, f func(ctx context.Context)) {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.Context(), time.Minute)
	defer cancel()
	changes := make(chan struct{})
	go func() { defer close(changes); f(ctx) }()
	n, until, audited := 0, time.Time{}, []int{}
	for ; until.IsZero() || time.Now().Before(until); n++ {
		select {
		case <-changes:
			changes, until = nil, time.Now().Add(12*time.Second) // longer than differences wait
			audited = k.audits(agents)
		default:
		}
		for _, node := range k.cluster.Nodes() {
			status, err := k.status(k.Context(), node)
			if err != nil {
				k.Fatal(err)
			}
			c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
			if c.Reason != v1alpha1.ReasonAuditInSync || status.Difference == nil || status.Difference.Count != 0 {
				k.Fatalf("%s: %s: %s; difference %+v", node.Name(), c.Reason, c.Message, status.Difference)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	for i, count := range k.audits(agents) {
		if count == audited[i] {
			k.Errorf("the agent of node %d has not audited since the last change: this proves too little", i+1)
		}
	}
	k.Logf("looked at the status of each node %d times", n)
}

// churn changes Services and their endpoints, several times a second for some
// time. It fails if most writes fail: the nodes would then be in sync for lack of changes.
func (k *take) churn(ctx context.Context) {
	c := k.cluster.Client()
	tried, written, begun := 0, 0, time.Now()
	for i := 0; time.Since(begun) < 20*time.Second && ctx.Err() == nil; i++ {
		name := fmt.Sprintf("churn-%d", i%7)
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		var err error
		switch i % 3 {
		case 0: // it comes, or goes
			if err = c.Delete(ctx, service); err != nil {
				service.Spec = corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}
				err = c.Create(ctx, service)
			}
		case 1: // its endpoints change
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
				AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.244.9.%d", 1+i%200)}}, {Addresses: []string{"10.244.9.250"}}},
			}
			if err = c.Create(ctx, slice); err != nil {
				err = c.Patch(ctx, slice, client.Merge)
			}
		default: // its type and policy change
			kind := []string{"ClusterIP", "NodePort", "LoadBalancer"}[i/3%3]
			err = c.Patch(ctx, service, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"type":"`+kind+`"}}`)))
		}
		switch tried++; {
		case err == nil:
			written++
		case client.IgnoreNotFound(err) != nil && ctx.Err() == nil:
			k.Logf("change %d of %s: %v", i, name, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
	k.Logf("%d of %d changes were written in %s", written, tried, time.Since(begun).Round(time.Second))
	if ctx.Err() == nil && written < max(tried/2, 30) {
		k.Errorf("only %d of %d changes were written: this proves too little", written, tried)
	}
}
