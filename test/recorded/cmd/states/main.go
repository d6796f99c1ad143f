package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

//go:embed workloads.yaml
var workloads string

// patience is how long a state may take to come about.
const patience = 4 * time.Minute

func main() {
	bin := flag.String("bin", "bin", "the directory with nodeproxy's programs")
	out := flag.String("out", "", "the directory to write, one directory in it for each state")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := record(ctx, *bin, *out)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// story is a cluster that goes from state to state.
type story struct {
	nodeproxy         *install.Nodeproxy
	api               client.Client
	out               string
	controller, agent *cluster.Process // agent is that of the second node
}

func record(ctx context.Context, bin, out string) (err error) {
	if out == "" {
		return errors.New("give -out")
	}
	if err := cluster.Check(); err != nil {
		return err
	}
	scheme, err := install.Scheme()
	if err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Options{Nodes: 2, Zones: []string{"a", "b"}, Scheme: scheme, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if bin, err = filepath.Abs(bin); err != nil {
		return err
	}
	s := &story{nodeproxy: &install.Nodeproxy{Cluster: c, Bin: bin, Config: "config"}, api: c.Client(), out: out}
	for _, step := range []struct {
		name string
		to   func(context.Context) error
	}{
		{"not-enabled", s.install},
		{"no-agents", s.switchOn},
		{"audit-differs", s.besideKubeProxy},
		{"outside-cluster", s.enforce},
		{"mode-fallback", s.askForIPVS},
		{"mode-impossible", s.withoutFallback},
		{"retained", s.loseObject},
		{"agent-silent", s.stopAgent},
		{"deleted", s.delete},
	} {
		begin := time.Now()
		if err := step.to(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		if err := s.record(ctx, step.name); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Println(step.name, time.Since(begin).Round(time.Second))
	}
	return nil
}

// record writes the state, once the controller, if one runs, has reported it.
func (s *story) record(ctx context.Context, name string) error {
	err := s.until(ctx, func(ctx context.Context) error {
		p := &v1alpha1.NodeProxy{}
		err := s.api.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, p)
		if err != nil {
			return client.IgnoreNotFound(err)
		}
		if s.controller != nil && (p.Status.ObservedGeneration != p.Generation || p.Status.Nodes.Total != 2) {
			return errors.New("the controller has not reported the newest change")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return recorded.Record(ctx, s.nodeproxy.Cluster.RESTConfig(), filepath.Join(s.out, name), time.Now())
}

// install brings CRDs, roles, pods and Services, and no NodeProxy.
func (s *story) install(ctx context.Context) error {
	if err := s.nodeproxy.Prepare(ctx); err != nil {
		return err
	}
	file := filepath.Join(s.nodeproxy.Cluster.Dir(), "workloads.yaml")
	if err := os.WriteFile(file, []byte(workloads), 0o600); err != nil {
		return err
	}
	if _, err := s.nodeproxy.Cluster.Kubectl(ctx, "apply", "-f", file); err != nil {
		return err
	}
	first, second := s.nodeproxy.Cluster.Node(0), s.nodeproxy.Cluster.Node(1)
	for _, pod := range []struct {
		node *cluster.Node
		name string
		app  string
	}{{first, "web-1", "web"}, {first, "web-2", "web"}, {second, "web-3", "web"}, {first, "db-1", "db"}} {
		spec := cluster.PodSpec{Namespace: "shop", Name: pod.name, Labels: map[string]string{"app": pod.app}}
		if _, err := pod.node.RunPod(ctx, spec); err != nil {
			return err
		}
	}
	balanced := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "balanced"}}
	patch := `{"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.10"}]}}}`
	return s.api.Status().Patch(ctx, balanced, client.RawPatch("application/merge-patch+json", []byte(patch)))
}

// switchOn creates NodeProxy and starts the controller: no agent reports yet.
func (s *story) switchOn(ctx context.Context) error {
	if err := s.nodeproxy.Enable(ctx); err != nil {
		return err
	}
	var err error
	if s.controller, err = s.nodeproxy.StartController(); err != nil {
		return err
	}
	return s.until(ctx, func(ctx context.Context) error {
		rules := &v1alpha1.NodeProxyRulesList{}
		if err := s.api.List(ctx, rules); err != nil || len(rules.Items) < 2 {
			return errors.Join(err, errors.New("not all nodes have rules"))
		}
		return nil
	})
}

// besideKubeProxy runs both on every node, nodeproxy with Audit.
func (s *story) besideKubeProxy(ctx context.Context) error {
	if err := s.set(ctx, func(settings *v1alpha1.WrittenSettings) { settings.Enforcement = new(v1alpha1.Audit) }); err != nil {
		return err
	}
	directory, err := binaries.Ensure(ctx, os.Stderr, binaries.KubeProxy)
	if err != nil {
		return err
	}
	kubeconfig, err := s.nodeproxy.Cluster.KubeconfigFor("kube-proxy", "system:kube-proxy")
	if err != nil {
		return err
	}
	var proxies []*cluster.Process
	for _, node := range s.nodeproxy.Cluster.Nodes() {
		p, err := node.Start(cluster.Command{Path: filepath.Join(directory, "kube-proxy"), Args: []string{
			"--kubeconfig", kubeconfig, "--hostname-override", node.Name(), "--proxy-mode", "iptables",
			"--cluster-cidr", cluster.PodRanges, "--conntrack-max-per-core", "0",
		}})
		if err != nil {
			return err
		}
		proxies = append(proxies, p)
		if s.agent, err = s.nodeproxy.StartAgent(node); err != nil {
			return err
		}
	}
	err = s.until(ctx, func(ctx context.Context) error { return s.nodeproxy.Reported(ctx, v1alpha1.ReasonAuditInSync) })
	if err != nil {
		return err
	}
	if err := s.record(ctx, "audit-beside-kube-proxy"); err != nil {
		return err
	}
	// One proxy ends, and a Service comes.
	if err := proxies[1].Stop(); err != nil {
		return err
	}
	if _, err := s.nodeproxy.Cluster.Kubectl(ctx, "-n", "shop", "create", "service", "clusterip", "late", "--tcp", "80"); err != nil {
		return err
	}
	if err := s.until(ctx, func(ctx context.Context) error { return s.programmed(ctx, 1, v1alpha1.ReasonAuditDiffers) }); err != nil {
		return err
	}
	return proxies[0].Stop()
}

// enforce has nodeproxy take over, with policies of both kinds.
func (s *story) enforce(ctx context.Context) error {
	if err := s.set(ctx, func(settings *v1alpha1.WrittenSettings) { settings.Enforcement = nil }); err != nil {
		return err
	}
	for _, object := range []client.Object{
		&v1alpha1.NodeProxyPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "slow-sync"},
			Spec: v1alpha1.NodeProxyPolicySpec{
				NodeSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{"topology.kubernetes.io/zone": "b"}},
				Settings:     v1alpha1.WrittenSettings{Sync: &v1alpha1.SyncSettings{MinIntervalMilliseconds: new(int32(1000))}},
			},
		},
		&v1alpha1.ServiceProxyPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "team-only"},
			Spec: v1alpha1.ServiceProxyPolicySpec{
				NamespaceSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "shop"}},
				ServiceSelector:   v1alpha1.LabelSelector{MatchLabels: map[string]string{"exposed": "yes"}},
				Overrides:         v1alpha1.ServiceOverrides{LoadBalancerSourceRanges: []string{"198.51.100.0/24"}},
			},
		},
	} {
		if err := s.api.Create(ctx, object); err != nil {
			return err
		}
	}
	if err := s.until(ctx, s.nodeproxy.Programmed); err != nil {
		return err
	}
	return s.until(ctx, s.done)
}

// done returns nil when no change is on its way.
func (s *story) done(ctx context.Context) error {
	p := &v1alpha1.NodeProxy{}
	if err := s.api.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, p); err != nil {
		return err
	}
	policy := &v1alpha1.NodeProxyPolicy{}
	if err := s.api.Get(ctx, client.ObjectKey{Name: "slow-sync"}, policy); err != nil {
		return err
	}
	for _, conditions := range [][]metav1.Condition{p.Status.Conditions, policy.Status.Conditions} {
		if !meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionReady) {
			return errors.New("a change is on its way")
		}
	}
	return nil
}

// askForIPVS asks for a mode that these nodes lack, and explains what to do then.
func (s *story) askForIPVS(ctx context.Context) error {
	if err := s.set(ctx, func(settings *v1alpha1.WrittenSettings) {
		settings.Mode, settings.Fallback = new(v1alpha1.ModeIPVS), new(v1alpha1.FallbackIPTables)
	}); err != nil {
		return err
	}
	return s.until(ctx, func(ctx context.Context) error {
		for i := range 2 {
			if _, err := s.condition(ctx, i, v1alpha1.ConditionModeFallback, metav1.ConditionTrue); err != nil {
				return err
			}
		}
		return nil
	})
}

// withoutFallback asks for it without, which one node is given.
func (s *story) withoutFallback(ctx context.Context) error {
	if err := s.set(ctx, func(settings *v1alpha1.WrittenSettings) { settings.Fallback = nil }); err != nil {
		return err
	}
	return s.until(ctx, func(ctx context.Context) error {
		for i := range 2 {
			if _, err := s.condition(ctx, i, v1alpha1.ConditionAccepted, metav1.ConditionFalse); err == nil {
				return nil
			}
		}
		return errors.New("no node rejects it")
	})
}

// loseObject goes back, and deletes the object of a Service while no controller runs.
func (s *story) loseObject(ctx context.Context) error {
	if err := s.set(ctx, func(settings *v1alpha1.WrittenSettings) { settings.Mode = nil }); err != nil {
		return err
	}
	if err := s.until(ctx, s.done); err != nil {
		return err
	}
	// It has to report its last action before it ends.
	if err := s.record(ctx, "retained"); err != nil {
		return err
	}
	if err := s.controller.Stop(); err != nil {
		return err
	}
	if err := s.api.Delete(ctx, &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "shop.db"}}); err != nil {
		return err
	}
	return s.until(ctx, func(ctx context.Context) error { return s.nodeproxy.Reported(ctx, v1alpha1.ReasonRetained) })
}

// stopAgent ends the agent of the second node and waits until the controller reports it.
func (s *story) stopAgent(ctx context.Context) error {
	var err error
	if s.controller, err = s.nodeproxy.StartController(); err != nil {
		return err
	}
	if err := s.until(ctx, s.nodeproxy.Programmed); err != nil {
		return err
	}
	if err := s.agent.Kill(); err != nil {
		return err
	}
	return s.until(ctx, func(ctx context.Context) error { return s.programmed(ctx, 1, v1alpha1.ReasonAgentNotResponding) })
}

// delete deletes NodeProxy, with removal policy Retain.
func (s *story) delete(ctx context.Context) error {
	return s.api.Delete(ctx, &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}})
}

// set changes the settings of NodeProxy.
func (s *story) set(ctx context.Context, change func(*v1alpha1.WrittenSettings)) error {
	return s.until(ctx, func(ctx context.Context) error {
		p := &v1alpha1.NodeProxy{}
		if err := s.api.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, p); err != nil {
			return err
		}
		change(p.Spec.Settings)
		return s.api.Update(ctx, p)
	})
}

func (s *story) until(ctx context.Context, f func(context.Context) error) error {
	return install.Until(ctx, patience, f)
}

// programmed returns nil when a node's condition Programmed has a reason.
func (s *story) programmed(ctx context.Context, node int, reason string) error {
	for _, status := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown} {
		if c, err := s.condition(ctx, node, v1alpha1.ConditionProgrammed, status); err == nil && c.Reason == reason {
			return nil
		}
	}
	return fmt.Errorf("node %d does not report %s", node, reason)
}

// condition returns a node's condition, or an error while it has not this status.
func (s *story) condition(ctx context.Context, node int, kind string, status metav1.ConditionStatus) (*metav1.Condition, error) {
	rules := &v1alpha1.NodeProxyRules{}
	if err := s.api.Get(ctx, client.ObjectKey{Name: s.nodeproxy.Cluster.Node(node).Name()}, rules); err != nil {
		return nil, err
	}
	for i := range rules.Status.Conditions {
		if c := &rules.Status.Conditions[i]; c.Type == kind && c.Status == status {
			return c, nil
		}
	}
	return nil, fmt.Errorf("%s of %s is not %s", kind, rules.Name, status)
}
