package nodes

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// families waits until the node reports these families.
func (e *env) families(want string) {
	e.Helper()
	e.until(func(ctx context.Context) error {
		rules := &v1alpha1.NodeProxyRules{}
		if err := e.nodeproxy.Cluster.Client().Get(ctx, client.ObjectKey{Name: e.node.Name()}, rules); err != nil {
			return err
		}
		if got := strings.Join(rules.Status.Families, " "); got != want {
			return fmt.Errorf("families %q, want %q", got, want)
		}
		return nil
	})
}

func (e *env) exec(name string, args ...string) string {
	e.Helper()
	out, err := e.node.Exec(e.Context(), name, args...)
	if err != nil {
		e.Fatal(err)
	}
	return out
}

// TestFamilies takes IPv6 from a node and gives it back, with and without a
// Service that needs it.
func TestFamilies(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.patch(`{"spec":{"settings":{"sync":{"verifyIntervalSeconds":5}}}}`)
	e.startAgent()
	e.programmed()
	e.families("IPv4 IPv6")
	if rules := e.exec("ip6tables-save", "-t", "nat"); !strings.Contains(rules, "-j KUBE-SERVICES") {
		t.Errorf("a node programs both families where it can, but ip6tables holds no jumps:\n%s", rules)
	}

	e.exec("sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1")
	e.families("IPv4")
	e.programmed()

	six := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "six"}, Spec: corev1.ServiceSpec{
		IPFamilies: []corev1.IPFamily{corev1.IPv6Protocol}, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	if err := e.nodeproxy.Cluster.Client().Create(t.Context(), six); err != nil {
		t.Fatal(err)
	}
	const todo = "IPv6 is disabled on the node; set the sysctl net.ipv6.conf.all.disable_ipv6 to 0"
	e.expect(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonUnsupported, todo)
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonFailed, todo)
	e.families("IPv4")
	if _, err := e.nodeproxy.Cluster.Kubectl(t.Context(), "create", "service", "clusterip", "four", "--tcp=80"); err != nil {
		t.Fatal(err)
	}
	e.holds("iptables-save", "default/four", true) // whatever IPv6 lacks
	e.exec("iptables", "-t", "nat", "-F", "KUBE-POSTROUTING")
	e.holds("iptables-save", "-A KUBE-POSTROUTING", true)

	e.exec("sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=0")
	e.holds("ip6tables-save", "default/six", true)
	e.programmed()
	e.families("IPv4 IPv6")
	if err := e.nodeproxy.Cluster.Client().Delete(t.Context(), six); err != nil {
		t.Fatal(err)
	}
	e.holds("ip6tables-save", "default/six", false)
	e.programmed()
}

// holds waits until the node's rules hold a text, or do not.
func (e *env) holds(save, text string, want bool) {
	e.Helper()
	e.until(func(context.Context) error {
		if got := strings.Contains(e.exec(save), text); got != want {
			return fmt.Errorf("%s prints %q: %t, want %t", save, text, got, want)
		}
		return nil
	})
}

// TestNodePortAddressesAreFollowed changes addresses of an interface and of the
// Node. No verification comes in between.
func TestNodePortAddressesAreFollowed(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.startAgent()
	e.patch(`{"spec":{"settings":{"nodePorts":{"addressMode":"CIDRs","cidrs":["192.0.2.0/24"]},"sync":{"verifyIntervalSeconds":3600}}}}`)
	if _, err := e.nodeproxy.Cluster.Kubectl(t.Context(), "create", "service", "nodeport", "web", "--tcp=80"); err != nil {
		t.Fatal(err)
	}
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "NodePorts answer on no IPv4 address")
	tail := func() string {
		for line := range strings.Lines(e.exec("iptables-save", "-t", "nat")) {
			if strings.HasPrefix(line, "-A KUBE-SERVICES") && strings.Contains(line, "-j KUBE-NODEPORTS") {
				return line
			}
		}
		return ""
	}
	for _, change := range []string{"add", "del", "add"} {
		e.exec("ip", "address", change, "192.0.2.5/32", "dev", "lo")
		start := time.Now()
		e.until(func(context.Context) error {
			if got := strings.Contains(tail(), "-d 192.0.2.5/32"); got != (change == "add") {
				return fmt.Errorf("the address is in the rules: %t, after address %s", got, change)
			}
			return nil
		})
		t.Logf("address %s: in the rules after %s", change, time.Since(start).Round(time.Millisecond))
	}

	e.patch(`{"spec":{"settings":{"nodePorts":{"addressMode":"Primary","cidrs":null}}}}`)
	e.until(func(context.Context) error {
		if got := tail(); !strings.Contains(got, "-d "+e.node.Address()+"/32") {
			return fmt.Errorf("the rule for NodePorts is %q", got)
		}
		return nil
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: e.node.Name()}}
	if err := e.nodeproxy.Cluster.Client().Status().Patch(t.Context(), node, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"addresses":null}}`))); err != nil {
		t.Fatal(err)
	}
	e.expect(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "the Node has no IPv4 address, so NodePorts answer on all IPv4 addresses")
	e.until(func(context.Context) error {
		if got := tail(); !strings.Contains(got, "--dst-type LOCAL") {
			return fmt.Errorf("the rule for NodePorts is %q", got)
		}
		return nil
	})
}
