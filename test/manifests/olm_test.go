package manifests_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// withOLMPermissions gives both service accounts the permissions that they have under OLM
// only, until the test ends.
func withOLMPermissions(t *testing.T) {
	t.Helper()
	file := configDirectory("manifests", "role_olm.yaml")
	if out, err := kubectl(t.Context(), "apply", "-f", file); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := kubectl(context.Background(), "delete", "-f", file); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// removePolicies has the cluster be without policies and labels until the
// controller makes them, and with those of the manifests when the test ends.
func removePolicies(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		for _, what := range [][]string{{"-k", configDirectory("admission")}, {"-f", configDirectory("manager", "namespace.yaml")}} {
			if out, err := kubectl(context.Background(), append([]string{"apply", "--server-side", "--force-conflicts"}, what...)...); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		}
	})
	for _, args := range [][]string{
		{"delete", "validatingadmissionpolicies,validatingadmissionpolicybindings", "-l", "app.kubernetes.io/part-of=nodeproxy"},
		{"label", "namespace", namespace, "pod-security.kubernetes.io/enforce-", "pod-security.kubernetes.io/warn=baseline", "--overwrite"},
	} {
		if out, err := kubectl(t.Context(), args...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	probe := rulesOfNoController()
	eventually(t, func(ctx context.Context) error { return server.client.Create(ctx, probe.DeepCopy(), client.DryRunAll) })
}

// rulesOfNoController are rendered rules that only the controller may make.
func rulesOfNoController() *v1alpha1.ServiceProxyRules {
	return &v1alpha1.ServiceProxyRules{
		ObjectMeta: metav1.ObjectMeta{Name: "by.hand"},
		Spec:       v1alpha1.ServiceProxyRulesSpec{FormatVersion: 1, ServiceCreated: metav1.Now()},
	}
}

// TestManageClusterObjects has the controller make the policies with the permissions of
// the bundle, and tries with real tokens whether they deny what they are for.
func TestManageClusterObjects(t *testing.T) {
	readManifests(t)
	withOLMPermissions(t)
	removePolicies(t)
	token := tokenOf(t, controllerAccount, nil)
	writer := clientWith(t, token)
	stop := startController(t, token, "--manage-cluster-objects")
	t.Run("what they deny", func(t *testing.T) { policiesDeny(t, writer) })

	proxy := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	create(t, server.client, proxy)
	eventually(t, func(ctx context.Context) error {
		return isDenial(label(ctx, writer, &v1alpha1.NodeProxy{ObjectMeta: proxy.ObjectMeta}), "can only change its own finalizer")
	})
	eventually(t, func(ctx context.Context) error {
		system := &corev1.Namespace{}
		if err := server.client.Get(ctx, client.ObjectKey{Name: namespace}, system); err != nil {
			return err
		}
		for _, mode := range []string{"enforce", "audit", "warn"} {
			if level := system.Labels["pod-security.kubernetes.io/"+mode]; level != "privileged" {
				return fmt.Errorf("the level to %s is %q", mode, level)
			}
		}
		return nil
	})
	// A change by hand, which the controller takes back by all the verbs it has.
	if out, err := kubectl(t.Context(), "patch", "validatingadmissionpolicybinding", "nodeproxy-rendered-objects", "--type=merge", "-p", `{"spec":{"validationActions":["Warn"]}}`); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	eventually(t, func(ctx context.Context) error {
		binding := &admissionv1.ValidatingAdmissionPolicyBinding{}
		err := server.client.Get(ctx, client.ObjectKey{Name: "nodeproxy-rendered-objects"}, binding)
		if err == nil && !slices.Equal(binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
			err = fmt.Errorf("the binding's actions are %v", binding.Spec.ValidationActions)
		}
		return err
	})
	stop()
	usesOLMPermissions(t)
}

// label tries to label an object.
func label(ctx context.Context, c client.Client, object client.Object) error {
	return c.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`)), client.DryRunAll)
}

// policiesDeny tries what the policies are for: writer is the controller.
func policiesDeny(t *testing.T, writer client.Client) {
	const own, other = "kept-1", "kept-2"
	rulesOf(t, own)
	rulesOf(t, other)
	agents := clientWith(t, tokenOf(t, agentAccount, podOn(t, own, agentAccount)))
	liftLeases(t)
	for name, c := range map[string]struct {
		write  func(context.Context) error
		denied string
	}{
		"rules by hand": {
			func(ctx context.Context) error {
				return server.client.Create(ctx, rulesOfNoController(), client.DryRunAll)
			}, "are written by nodeproxy-controller only",
		},
		"another node's status": {writeStatus(agents, other), "not of " + other},
		"its Lease elsewhere": {
			func(ctx context.Context) error {
				return agents.Create(ctx, inNamespace(leaseOf("agent."+own, own), "default"), client.DryRunAll)
			}, "can only write its Lease in the namespace " + namespace,
		},
		"another Lease elsewhere": {
			func(ctx context.Context) error {
				return agents.Create(ctx, inNamespace(leaseOf("kube-controller-manager", own), "kube-system"), client.DryRunAll)
			}, "can only write its Lease in the namespace " + namespace,
		},
		"labels of a Node": {
			func(ctx context.Context) error {
				return label(ctx, writer, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: own}})
			}, "can only remove the taint",
		},
	} {
		t.Run(name, func(t *testing.T) {
			eventually(t, func(ctx context.Context) error { return isDenial(c.write(ctx), c.denied) })
		})
	}
	expect(t, writeStatus(agents, own)(t.Context()), "")
}

// liftLeases makes a ClusterRole of the agents' Role, as OLM does, until the test ends.
func liftLeases(t *testing.T) {
	t.Helper()
	lifted := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "lifted"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: []string{"create", "patch"}},
	}}
	create(t, server.client, lifted)
	create(t, server.client, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: lifted.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: lifted.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: agentAccount}},
	})
}

// isDenial returns nil for a denial that holds a text.
func isDenial(err error, text string) error {
	if err == nil {
		return fmt.Errorf("allowed; want a denial with %q in its message", text)
	}
	if !strings.Contains(err.Error(), text) {
		return fmt.Errorf("want a denial with %q in its message: %w", text, err)
	}
	return nil
}

// usesOLMPermissions compares the API server's log with the role: what the controller
// was denied, and which permission it has not used.
func usesOLMPermissions(t *testing.T) {
	t.Helper()
	used, denied := requestsOf(t, userOf(controllerAccount))
	for _, line := range denied {
		if strings.Contains(line, "admissionregistration") || strings.Contains(line, "namespaces") {
			t.Errorf("the controller was denied %s", line)
		}
	}
	for _, line := range granted(t, controllerAccount+"-olm") {
		// What only OpenShift asks, and what only a plugin of the API server does.
		if !used[line] && !strings.Contains(line, "securitycontextconstraints") && !strings.Contains(line, ": delete ") {
			t.Errorf("the controller has not used this permission: %s", line)
		}
	}
}
