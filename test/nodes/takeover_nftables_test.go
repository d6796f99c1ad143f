package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// TestTakeoverNFTables hands the nodes of a cluster from the real kube-proxy in mode nftables to
// agents in mode NFTables, back, and to the agents again, under the load of TestTakeover. After
// each takeover, the table of the other proxy is gone.
func TestTakeoverNFTables(t *testing.T) {
	k := newTakeover(t)
	k.former = "nftables"
	k.setMode(v1alpha1.ModeNFTables)
	var before [][]string
	for _, node := range k.cluster.Nodes() {
		k.makeOthersRules(node)
		before = append(before, k.saved(node))
	}
	// Only mode IPTables serves node ports at 127.0.0.1, and what a client of a Service with
	// affinity has got is known to one proxy.
	targets := slices.DeleteFunc(k.makeServices(), func(t load.Target) bool { return strings.HasPrefix(t.Address, "127.") })
	for i := range targets {
		targets[i].Check = nil
	}
	k.startKubeProxies()
	k.onlyTables("kube-proxy")
	l := startLoad(t, pace, targets)
	l.during("kube-proxy runs", 3*time.Second, func() {})
	l.during("kube-proxy stops, agents start", 3*time.Second, func() {
		k.stop()
		k.startAgents()
		k.onlyTables("nodeproxy")
	})
	// From now on they run, as pods of a DaemonSet do.
	agents := k.run
	l.during("agents run", 3*time.Second, func() { k.run = nil })
	l.during("kube-proxy starts", 3*time.Second, func() {
		k.startKubeProxies()
		k.onlyTables("kube-proxy")
	})
	l.during("kube-proxy runs", 3*time.Second, func() {})
	l.during("kube-proxy stops", 3*time.Second, func() {
		k.stop()
		k.until(k.nodeproxy.Programmed)
		k.onlyTables("nodeproxy")
	})
	k.run = agents
	l.End()
	t.Logf("in all: %d new TCP connections, %d new UDP flows, %d connections held", l.Answered("tcp"), l.Answered("udp"), len(targets))
	k.stop()
	for i, node := range k.cluster.Nodes() {
		if diff := cmp.Diff(before[i], k.saved(node)); diff != "" {
			t.Errorf("%s: iptables has other rules (-before anything ran +after):\n%s", node.Name(), diff)
		}
	}
}

// TestModesUnderLoad changes live nodes from mode to mode. Nothing of the former mode is left.
func TestModesUnderLoad(t *testing.T) {
	k := newTakeover(t)
	others := map[string][]string{}
	for _, node := range k.cluster.Nodes() {
		k.makeOthersRules(node)
		others[node.Name()] = k.saved(node)
	}
	targets := slices.DeleteFunc(k.makeServices(), func(t load.Target) bool { return strings.HasPrefix(t.Address, "127.") })
	for i := range targets {
		targets[i].Check = nil
	}
	k.startAgents()
	rules := map[string][]string{}
	for _, node := range k.cluster.Nodes() {
		rules[node.Name()] = k.complete(node)
	}
	l := startLoad(t, pace, targets)
	for _, mode := range []v1alpha1.ProxyMode{v1alpha1.ModeNFTables, v1alpha1.ModeIPTables, v1alpha1.ModeNFTables} {
		want, tables := rules, []string{}
		if mode == v1alpha1.ModeNFTables {
			want, tables = others, []string{"nodeproxy"}
		}
		l.during("to mode "+string(mode), 5*time.Second, func() {
			k.setMode(mode)
			k.until(func(ctx context.Context) error { return k.runs(ctx, mode) })
			k.onlyTables(tables...)
		})
		for _, node := range k.cluster.Nodes() {
			// Rules of Services may be in another order.
			if diff := cmp.Diff(slices.Sorted(slices.Values(want[node.Name()])), slices.Sorted(slices.Values(k.saved(node)))); diff != "" {
				t.Errorf("%s in mode %s: iptables has other rules (-want +got):\n%s", node.Name(), mode, diff)
			}
		}
	}
	l.End()
}

// complete returns the rules of iptables once they have all endpoints and load-balancer IPs: a new agent
// may report Programmed before the controller has rendered the last Services.
func (k *take) complete(node *cluster.Node) (rules []string) {
	k.Helper()
	services, pods := &corev1.ServiceList{}, &corev1.PodList{}
	k.until(func(ctx context.Context) error {
		if err := errors.Join(k.cluster.Client().List(ctx, services), k.cluster.Client().List(ctx, pods, client.MatchingLabels{"app": "web"})); err != nil {
			return err
		}
		rules = k.saved(node)
		want, wantLocal := 0, 0
		for i := range services.Items {
			svc := &services.Items[i]
			if svc.Spec.Selector == nil {
				continue
			}
			pairs := len(svc.Spec.Ports) * len(svc.Spec.ClusterIPs) // all select all pods
			want += pairs * len(pods.Items)
			if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
				wantLocal += pairs * len(pods.Items) / len(k.cluster.Nodes())
			}
			for _, ingress := range svc.Status.LoadBalancer.Ingress {
				if !slices.ContainsFunc(rules, func(rule string) bool { return strings.Contains(rule, ingress.IP+"/") }) {
					return fmt.Errorf("%s has no rule for %s", node.Name(), ingress.IP)
				}
			}
		}
		got, gotLocal := 0, 0
		for _, rule := range rules {
			if strings.Contains(rule, "--to-destination") && !strings.Contains(rule, "default/kubernetes") {
				got++
			}
			if strings.Contains(rule, "-A KUBE-SVL-") && strings.Contains(rule, "-j KUBE-SEP-") {
				gotLocal++
			}
		}
		if got < want || gotLocal < wantLocal {
			return fmt.Errorf("%s has rules for %d endpoints of %d, and for %d local ones of %d", node.Name(), got, want, gotLocal, wantLocal)
		}
		return nil
	})
	return rules
}

// setMode sets the mode of all nodes.
func (k *take) setMode(mode v1alpha1.ProxyMode) {
	k.Helper()
	k.mode = mode
	proxy := &v1alpha1.NodeProxy{}
	if err := k.cluster.Client().Get(k.Context(), client.ObjectKey{Name: v1alpha1.NodeProxyName}, proxy); err != nil {
		k.Fatal(err)
	}
	before := client.MergeFrom(proxy.DeepCopy())
	proxy.Spec.Settings.Mode = new(mode)
	if err := k.cluster.Client().Patch(k.Context(), proxy, before); err != nil {
		k.Fatal(err)
	}
}

// runs returns nil once all nodes run a mode and nothing else is pending.
func (k *take) runs(ctx context.Context, mode v1alpha1.ProxyMode) error {
	if err := errors.Join(install.Running(k.run...), k.nodeproxy.Programmed(ctx)); err != nil {
		return err
	}
	for _, node := range k.cluster.Nodes() {
		rules := &v1alpha1.NodeProxyRules{}
		if err := k.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
			return err
		}
		if rules.Status.Mode != mode {
			return fmt.Errorf("%s runs mode %s", node.Name(), rules.Status.Mode)
		}
	}
	return nil
}

// onlyTables waits until each node has these tables of nf_tables of both IP families, and none of
// another proxy.
func (k *take) onlyTables(want ...string) {
	k.Helper()
	for _, node := range k.cluster.Nodes() {
		k.until(func(context.Context) error {
			var got []string
			for _, table := range k.tables(node) {
				if strings.HasSuffix(table, "kube-proxy") || strings.HasSuffix(table, "nodeproxy") {
					got = append(got, table)
				}
			}
			var all []string
			for _, family := range []string{"ip", "ip6"} {
				for _, name := range want {
					all = append(all, "table "+family+" "+name)
				}
			}
			if slices.Sort(got); !slices.Equal(got, all) {
				return fmt.Errorf("%s has %q, want %q", node.Name(), got, all)
			}
			return nil
		})
	}
}

func (k *take) tables(node *cluster.Node) []string {
	text, err := node.Exec(k.Context(), "nft", "list", "tables")
	if err != nil {
		k.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(text), "\n")
}
