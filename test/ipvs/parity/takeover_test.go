package parity

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/nodeproxy-io/nodeproxy/test/load"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

const (
	// limit is how long a program may take to finish on a busy machine.
	limit = 6 * time.Minute
	// pace is the number of new connections in a second, limited by an emulated kernel.
	pace = 10
	// shopIP and shopPort are where the Service answers, shopNodePort its node port.
	shopIP       = "10.96.7.7"
	shopPort     = 80
	shopNodePort = 30777
)

// TestTakeOver lets kube-proxy in mode ipvs and the agent take each other's place on
// one node, under load, and reports which connections failed.
func TestTakeOver(t *testing.T) {
	s := newShop(t)
	s.startKubeProxy()
	s.ready("kube-proxy serves")
	s.synced()
	s.takeOver(v1alpha1.ModeIPVS)
	s.handBack()
	s.takeOver(v1alpha1.ModeIPTables)
	s.handBackAfterCleanup()
}

// shop is a Service with a server on each node and a client on the first, whose proxy
// is changed.
type shop struct {
	*testing.T
	*pair
	client  *cluster.Pod
	targets []load.Target
	before  *state // kube-proxy's
}

func newShop(t *testing.T) *shop {
	s := &shop{T: t, pair: use(t)}
	s.ShareNode()
	ctx := t.Context()
	var endpoints []discoveryv1.Endpoint
	var servers []string
	for i, node := range s.Nodeproxy.Cluster.Nodes() {
		pod, err := node.RunPod(ctx, cluster.PodSpec{Name: fmt.Sprintf("server-%d", i)})
		if err != nil {
			t.Fatal(err)
		}
		endpoints = append(endpoints, discoveryv1.Endpoint{Addresses: []string{pod.IP()}, NodeName: new(node.Name())})
		servers = append(servers, pod.Name())
	}
	var err error
	if s.client, err = s.node().RunPod(ctx, cluster.PodSpec{Name: "client"}); err != nil {
		t.Fatal(err)
	}
	s.makeService(endpoints)
	for name, target := range map[string]load.Target{
		"ClusterIP":          {From: s.client.Place, Network: "tcp", Address: fmt.Sprintf("%s:%d", shopIP, shopPort)},
		"ClusterIP, UDP":     {From: s.client.Place, Network: "udp", Address: fmt.Sprintf("%s:%d", shopIP, shopPort)},
		"NodePort, outside":  {From: s.Nodeproxy.Cluster.Outside(), Network: "tcp", Address: fmt.Sprintf("%s:%d", s.node().Address(), shopNodePort)},
		"ClusterIP, by node": {From: s.node().Place, Network: "tcp", Address: fmt.Sprintf("%s:%d", shopIP, shopPort)},
	} {
		target.Name, target.Servers = name, servers
		s.targets = append(s.targets, target)
	}
	return s
}

// node is the one whose proxy is changed.
func (s *shop) node() *cluster.Node { return s.KubeProxy.Node }

// makeService creates the Service, with slices as the controllers would.
func (s *shop) makeService(endpoints []discoveryv1.Endpoint) {
	s.Helper()
	const namespace, name = metav1.NamespaceDefault, "shop"
	objects := []client.Object{
		&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeNodePort, ClusterIP: shopIP,
				Ports: []corev1.ServicePort{
					{Name: "tcp", Port: shopPort, NodePort: shopNodePort},
					{Name: "udp", Port: shopPort, NodePort: shopNodePort, Protocol: corev1.ProtocolUDP},
				},
			},
		},
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{
				{Name: new("tcp"), Port: new(int32(8080))}, {Name: new("udp"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolUDP)},
			},
			Endpoints: endpoints,
		},
	}
	for _, o := range objects {
		if err := s.Nodeproxy.Cluster.Client().Create(s.Context(), o); err != nil {
			s.Fatal(err)
		}
		s.Cleanup(func() {
			if err := s.Nodeproxy.Cluster.Client().Delete(context.Background(), o); err != nil {
				s.Error(err)
			}
		})
	}
}

func (s *shop) startKubeProxy() {
	s.Helper()
	if err := s.StartKubeProxy(worlds.PlainIPVS(), s.node().Name()); err != nil {
		s.Fatal(err)
	}
}

// ready waits until all targets answer, and kube-proxy has no more to do.
func (s *shop) ready(what string) {
	s.Helper()
	err := install.Until(s.Context(), limit, func(ctx context.Context) error {
		if err := s.Running(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		for _, target := range s.targets {
			if err := target.Try(ctx); err != nil {
				return fmt.Errorf("%s: %w", target, err)
			}
		}
		return nil
	})
	if err != nil {
		s.Fatalf("%s: %v\n%s", what, err, s.Tails())
	}
}

// under calls f under load, and returns what failed.
func (s *shop) under(what string, f func()) []load.Failure {
	s.Helper()
	l, err := load.Start(s.Context(), pace, s.targets)
	if err != nil {
		s.Fatal(err)
	}
	done := false
	defer func() {
		l.End()
		// If f has ended the test, no caller decides which of them were allowed to fail.
		if n := len(l.Failures()); !done && n > 0 {
			load.Lost(s, "%s: %d connections failed", what, n)
		}
	}()
	f()
	done = true
	since := time.Now()
	if err := install.Until(s.Context(), limit, func(context.Context) error { return l.WellSince(since) }); err != nil {
		s.Errorf("%s: %v", what, err)
	}
	l.End()
	held, questions := l.Held()
	failures := l.Failures()
	s.Logf("%s: %d new connections, %d held with %d questions: %d failed", what, l.Total(), held, questions, len(failures))
	for _, failure := range failures[:min(len(failures), 5)] {
		s.Logf("  %s", failure)
	}
	return failures
}

// takeOver stops kube-proxy and starts the agent without any former state.
func (s *shop) takeOver(mode v1alpha1.ProxyMode) {
	s.Helper()
	s.enable(mode)
	s.before = s.read()
	failures := s.under(fmt.Sprintf("from kube-proxy's ipvs to nodeproxy's %s", mode), func() {
		if err := s.KubeProxy.Stop(); err != nil {
			s.Fatal(err)
		}
		s.startOwnAgent()
		s.programmed(mode)
	})
	if len(failures) > 0 {
		load.Lost(s, "%d connections failed", len(failures))
	}
	if mode == v1alpha1.ModeIPVS {
		s.same("the agent has taken over", s.before, s.read())
	}
}

// handBack stops the agent and starts kube-proxy on what it left.
func (s *shop) handBack() {
	s.Helper()
	failures := s.under("from nodeproxy's IPVS to kube-proxy's ipvs", func() {
		if err := s.Agent.Stop(); err != nil {
			s.Fatal(err)
		}
		s.startKubeProxy()
		s.synced()
	})
	if len(failures) > 0 {
		load.Lost(s, "%d connections failed", len(failures))
	}
	s.same("kube-proxy has taken over", s.before, s.read())
}

// handBackAfterCleanup removes everything of nodeproxy before kube-proxy starts.
func (s *shop) handBackAfterCleanup() {
	s.Helper()
	if err := s.Agent.Stop(); err != nil {
		s.Fatal(err)
	}
	if out, err := s.node().Exec(s.Context(), s.agentPath(), "cleanup"); err != nil {
		s.Fatalf("%v\n%s", err, out)
	}
	left := s.read()
	if len(left.servers)+len(left.sets) > 0 {
		s.Errorf("after cleanup: %d virtual servers and %d sets are left", len(left.servers), len(left.sets))
	}
	s.startKubeProxy()
	s.ready("kube-proxy serves after cleanup")
	s.synced()
	s.same("kube-proxy has started after cleanup", s.before, s.read())
}

func (s *shop) read() *state {
	s.Helper()
	out, err := read(s.Context(), s.node())
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// same compares two states of the node.
func (s *shop) same(what string, before, after *state) {
	s.Helper()
	dropComments(situation{}, before, after)
	for f, names := range noLocalSets() { // empty here; kube-proxy does not remove them
		for _, one := range []*state{before, after} {
			one.rules[f].DropUnusedTables()
			delete(one.sets, names.elsewhere)
			delete(one.sets, names.nowhere)
			dropNoLocalRules(one.rules[f], names)
		}
	}
	for _, d := range compare(before, after) {
		s.Errorf("%s, and this differs from before (kube-proxy) to after (nodeproxy): %s", what, d)
	}
}

// enable writes the NodeProxy.
func (s *shop) enable(mode v1alpha1.ProxyMode) {
	s.Helper()
	settings := worlds.PlainIPVS().ForNodeProxy()
	settings.Mode = &mode
	if err := worlds.WriteSettings(s.Context(), s.Nodeproxy.Cluster.Client(), settings); err != nil {
		s.Fatal(err)
	}
}

func (s *shop) startOwnAgent() {
	s.Helper()
	if err := s.StartAgent("--state-dir", s.TempDir()); err != nil {
		s.Fatal(err)
	}
}

func (s *shop) agentPath() string { return s.Nodeproxy.Bin + "/nodeproxy-agent" }

// programmed waits until the agent reports that everything is programmed, in a mode.
func (s *shop) programmed(mode v1alpha1.ProxyMode) {
	s.Helper()
	err := install.Until(s.Context(), limit, func(ctx context.Context) error {
		if err := s.Running(); err != nil {
			return err
		}
		rules := &v1alpha1.NodeProxyRules{}
		if err := s.Nodeproxy.Cluster.Client().Get(ctx, client.ObjectKey{Name: s.node().Name()}, rules); err != nil {
			return err
		}
		c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
		switch {
		case c == nil:
			return errors.New("not reported yet")
		case c.Reason != v1alpha1.ReasonProgrammed || rules.Status.Mode != mode:
			return fmt.Errorf("mode %s, Programmed is %s: %s", rules.Status.Mode, c.Reason, c.Message)
		}
		return nil
	})
	if err != nil {
		s.Fatalf("%v\n%s", err, s.Tails())
	}
}

// synced waits until kube-proxy has made its first sync of both families.
func (s *shop) synced() {
	s.Helper()
	err := install.Until(s.Context(), limit, func(ctx context.Context) error {
		if err := s.Running(); err != nil {
			return err
		}
		_, err := s.node().Exec(ctx, "sh", "-c", "iptables-save | grep -q 'KUBE-IPVS-IPS dst -j REJECT' && ip6tables-save | grep -q 'KUBE-6-IPVS-IPS dst -j REJECT'")
		if err != nil {
			return err
		}
		return s.rest(ctx)
	})
	if err != nil {
		s.Fatalf("%v\n%s", err, s.Tails())
	}
}
