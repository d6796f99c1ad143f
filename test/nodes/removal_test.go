package nodes

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// TestRemovalWithCleanup deletes a NodeProxy whose removalPolicy is Cleanup: our
// rules go from the kernel, the kubelet's stay, and nothing brings them back but
// another NodeProxy.
func TestRemovalWithCleanup(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.patch(`{"spec":{"removalPolicy":"Cleanup"}}`)
	e.kubeletChains()
	agent := e.startAgent()
	e.programmed()
	e.until(e.apiServerAnswers)
	service := e.createUDPService()
	visitor := e.client("visitor")
	e.server("one", "10.244.1.101")
	flows := []*udpFlow{e.flow(visitor, at(flowsClusterIPs[0], flowsPort)), e.flow(visitor, at(flowsClusterIPs[1], flowsPort))}
	e.allAnswer(flows, "one")
	file := filepath.Join(e.nodeproxy.Cluster.Dir(), "state-"+e.node.Name(), e.node.Name()+".checkpoint")
	e.until(func(context.Context) error { _, err := os.Stat(file); return err })
	health := "http://" + e.node.AddressPort(10256) + "/healthz"
	e.until(e.answers(http.MethodGet, health, 200, nil))
	sysctls := e.exec("sysctl", "net.ipv4.conf.all.route_localnet", "net.netfilter.nf_conntrack_tcp_timeout_established")

	// Without a controller NodeProxy and rendered objects stay.
	e.until(func(ctx context.Context) error {
		np, err := e.proxy(ctx)
		if err == nil && len(np.Finalizers) == 0 {
			err = errors.New("the NodeProxy has no finalizer")
		}
		return err
	})
	if err := e.controller.Stop(); err != nil {
		t.Fatal(err)
	}
	np, err := e.proxy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.nodeproxy.Cluster.Client().Delete(t.Context(), np); err != nil {
		t.Fatal(err)
	}
	e.expect(v1alpha1.ConditionProgrammed, "False", v1alpha1.ReasonRemoved, "removed from this node")
	e.clean()
	if err := e.apiServerAnswers(t.Context()); err == nil {
		t.Error("the cluster IP of a Service still answers")
	}
	if _, err := e.ask(t.Context(), http.MethodGet, health); err == nil {
		t.Error("load balancers are still informed that the node is well")
	}
	for _, f := range flows {
		e.until(func(context.Context) error { return f.untracked() })
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the checkpoint is still on the disk: %v", err)
	}
	if now := e.exec("sysctl", "net.ipv4.conf.all.route_localnet", "net.netfilter.nf_conntrack_tcp_timeout_established"); now != sysctls {
		t.Errorf("sysctls were changed from %s to %s", sysctls, now)
	}

	e.nothingBringsBack(agent)
	e.takenUpAgain(service)
	e.until(e.answers(http.MethodGet, health, 200, nil))
}

// nothingBringsBack the rules: neither another agent, nor a change of the kernel.
func (e *env) nothingBringsBack(agent *cluster.Process) {
	e.Helper()
	if err := agent.Kill(); err != nil {
		e.Fatal(err)
	}
	e.startAgent()
	e.until(e.ready) // as it knows what the former one has reported
	e.exec("iptables", "-t", "nat", "-N", "OTHERS")
	e.exec("iptables", "-t", "nat", "-X", "OTHERS")
	e.expect(v1alpha1.ConditionProgrammed, "False", v1alpha1.ReasonRemoved, "removed from this node")
	e.until(e.ready)
	e.clean()
}

// takenUpAgain has a controller end the removal, and another NodeProxy come. The
// Service is one that ends in between.
func (e *env) takenUpAgain(service *corev1.Service) {
	e.Helper()
	var err error
	if e.controller, err = e.nodeproxy.StartController(); err != nil {
		e.Fatal(err)
	}
	e.until(func(ctx context.Context) error {
		if _, err := e.proxy(ctx); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the NodeProxy is still there"), err)
		}
		return nil
	})
	e.clean()
	if err := e.nodeproxy.Cluster.Client().Delete(e.Context(), service); err != nil {
		e.Fatal(err)
	}
	if err := e.nodeproxy.Enable(e.Context()); err != nil {
		e.Fatal(err)
	}
	e.programmed()
	e.until(e.apiServerAnswers)
	if rules := e.exec("iptables-save"); strings.Contains(rules, flowsClusterIPs[0]) {
		e.Error("a Service that ended meanwhile is programmed")
	}
}

// TestRemovalBesideKubeProxy deletes such a NodeProxy on a node where kube-proxy
// has taken over: its rules stay.
func TestRemovalBesideKubeProxy(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.patch(`{"spec":{"removalPolicy":"Cleanup"}}`)
	e.startAgent()
	e.programmed()
	e.startKubeProxy()
	e.expect(v1alpha1.ConditionProgrammed, "False", v1alpha1.ReasonConflictingProxy, "")
	e.until(e.apiServerAnswers)
	if err := e.controller.Stop(); err != nil {
		t.Fatal(err)
	}
	np, err := e.proxy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.nodeproxy.Cluster.Client().Delete(t.Context(), np); err != nil {
		t.Fatal(err)
	}
	e.expect(v1alpha1.ConditionProgrammed, "False", v1alpha1.ReasonRemoved, "another proxy is active on it")
	if err := e.apiServerAnswers(t.Context()); err != nil {
		t.Errorf("kube-proxy's rules were touched: %v", err)
	}
}

// proxy reads the NodeProxy.
func (e *env) proxy(ctx context.Context) (*v1alpha1.NodeProxy, error) {
	np := &v1alpha1.NodeProxy{}
	err := e.nodeproxy.Cluster.Client().Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np)
	return np, err
}

// kubeletRules are as a kubelet makes them.
var kubeletRules = []string{"-N KUBE-KUBELET-CANARY", "-N KUBE-FIREWALL", "-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL",
	"-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"}

func (e *env) kubeletChains() {
	e.Helper()
	for _, rule := range kubeletRules {
		e.exec("iptables", append([]string{"-t", "filter"}, strings.Fields(rule)...)...)
	}
}

// clean looks that the kernel has nothing of ours, and all that is the kubelet's.
func (e *env) clean() {
	e.Helper()
	for _, save := range []string{"iptables-save", "ip6tables-save"} {
		rules := e.exec(save)
		for line := range strings.Lines(rules) {
			if strings.Contains(line, "KUBE-") && !strings.Contains(line, "KUBE-FIREWALL") && !strings.Contains(line, "KUBE-KUBELET-CANARY") {
				e.Errorf("%s: left: %s", save, line)
			}
		}
	}
	rules := e.exec("iptables-save", "-t", "filter")
	for _, rule := range kubeletRules {
		if rule = strings.Replace(rule, "-N ", ":", 1); !strings.Contains(rules, rule) {
			e.Errorf("the kubelet's is gone: %s", rule)
		}
	}
}
