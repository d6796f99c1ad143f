package manifests_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// userClient returns a client that acts as a user of the cluster.
func userClient(t *testing.T, user string) client.Client {
	t.Helper()
	config := rest.CopyConfig(server.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user}
	c, err := client.New(config, client.Options{Scheme: server.client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// parts reports of which roles another consists.
var parts = map[string][]string{"view": {"view"}, "edit": {"edit", "view"}, "admin": {"admin", "edit", "view"}}

// bindInNamespace gives a user a role such as edit in a namespace. In a whole
// cluster a controller gathers what it consists of; here there is only the API
// server, so each part is bound by itself.
func bindInNamespace(t *testing.T, user, role, namespace string) {
	t.Helper()
	for _, part := range parts[role] {
		var roles rbacv1.ClusterRoleList
		if err := server.client.List(t.Context(), &roles, client.MatchingLabels{"rbac.authorization.k8s.io/aggregate-to-" + part: "true"}); err != nil {
			t.Fatal(err)
		}
		if len(roles.Items) == 0 {
			t.Fatalf("no ClusterRole is a part of %s", part)
		}
		for _, r := range roles.Items {
			create(t, server.client, &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: user + "-"},
				Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
				RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", APIGroup: rbacv1.GroupName, Name: r.Name},
			})
		}
	}
}

func TestUserWithARoleInANamespaceChangesNothingOfOurs(t *testing.T) {
	readManifests(t)
	shop := newNamespace(t, "shop")
	rules := rulesOf(t, "users-1")
	proxy := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	create(t, server.client, proxy)
	create(t, server.client, configMap(shop, "seen"))
	for role := range parts {
		t.Run(role, func(t *testing.T) {
			user := "user-" + role
			bindInNamespace(t, user, role, shop)
			// An allowed request shows that the permissions that were just granted apply.
			eventually(t, func(ctx context.Context) error {
				return userClient(t, user).Get(ctx, client.ObjectKey{Namespace: shop, Name: "seen"}, &corev1.ConfigMap{})
			})
			var ours []action
			for _, a := range actions(t, namespace, shop) {
				if a.group == v1alpha1.GroupVersion.Group || a.namespace == namespace {
					ours = append(ours, a)
				}
			}
			if got := allowed(t, user, nil, ours); len(got) > 0 {
				t.Errorf("who has the role %s in another namespace may do\n%s", role, strings.Join(got, "\n"))
			}
		})
	}
	bindInNamespace(t, "editor", "edit", shop)
	editor := userClient(t, "editor")
	if err := editor.Create(t.Context(), configMap(shop, "own")); err != nil {
		t.Errorf("the user may not even write in his own namespace: %v", err)
	}
	changed := rules.DeepCopy()
	changed.Spec.SettingsRevision = "00000000"
	status := rules.DeepCopy()
	status.Status.Services = 1
	removed := proxy.DeepCopy()
	for name, write := range map[string]func(context.Context) error{
		"NodeProxyRules":           func(ctx context.Context) error { return editor.Update(ctx, changed) },
		"status of NodeProxyRules": func(ctx context.Context) error { return editor.Status().Update(ctx, status) },
		"NodeProxyRules, deleted":  func(ctx context.Context) error { return editor.Delete(ctx, rules) },
		"ServiceProxyRules":        func(ctx context.Context) error { return editor.Create(ctx, serviceRules("shop.cart")) },
		"NodeProxyPolicy":          func(ctx context.Context) error { return editor.Create(ctx, nodePolicy("mine")) },
		"ServiceProxyPolicy":       func(ctx context.Context) error { return editor.Create(ctx, servicePolicy("mine")) },
		"NodeProxy, deleted":       func(ctx context.Context) error { return editor.Delete(ctx, removed) },
		"API servers": func(ctx context.Context) error {
			return editor.Create(ctx, configMap(namespace, apiServersName))
		},
		"DaemonSet": func(ctx context.Context) error { return editor.Create(ctx, daemonSet()) },
		"Lease":     func(ctx context.Context) error { return editor.Create(ctx, leaseOf("agent.users-1", "users-1")) },
		"token of the agents": func(ctx context.Context) error {
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: agentAccount}}
			return editor.Delete(ctx, account)
		},
	} {
		t.Run(name, func(t *testing.T) { expect(t, write(t.Context()), `User "editor" cannot`) })
	}
}

func configMap(namespace, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func serviceRules(name string) *v1alpha1.ServiceProxyRules {
	return &v1alpha1.ServiceProxyRules{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ServiceProxyRulesSpec{
			FormatVersion: 1, ServiceCreated: metav1.Now(), ClusterIPs: []string{"10.96.0.7"},
			Ports: []v1alpha1.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}},
		},
	}
}

func nodePolicy(name string) *v1alpha1.NodeProxyPolicy {
	return &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func servicePolicy(name string) *v1alpha1.ServiceProxyPolicy {
	return &v1alpha1.ServiceProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func daemonSet() *appsv1.DaemonSet {
	labels := map[string]string{"app.kubernetes.io/name": "nodeproxy-agent"}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nodeproxy-agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "example.com/other"}}},
			},
		},
	}
}

// TestOnlyTheControllerWritesRenderedObjects tries it as an administrator, whom
// no role stops.
func TestOnlyTheControllerWritesRenderedObjects(t *testing.T) {
	ctx := t.Context()
	controller := clientWith(t, tokenOf(t, controllerAccount, nil))
	service := serviceRules("shop.written")
	create(t, controller, service)
	node := rulesOf(t, "written-1")
	const denied = "are written by nodeproxy-controller only"

	expect(t, server.client.Create(ctx, serviceRules("shop.mine")), "serviceproxyrules "+denied)
	edited := service.DeepCopy()
	edited.Spec.ClusterIPs = []string{"10.96.0.8"}
	expect(t, server.client.Update(ctx, edited), denied)
	for name, edit := range map[string]func(*metav1.ObjectMeta){
		"labels":      func(m *metav1.ObjectMeta) { m.Labels = map[string]string{"mine": "yes"} },
		"annotations": func(m *metav1.ObjectMeta) { m.Annotations = map[string]string{"mine": "yes"} },
		"finalizers":  func(m *metav1.ObjectMeta) { m.Finalizers = []string{"example.com/mine"} },
		"owners": func(m *metav1.ObjectMeta) {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "written-1", UID: "1"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			marked := node.DeepCopy()
			edit(&marked.ObjectMeta)
			expect(t, server.client.Update(ctx, marked), "nodeproxyrules "+denied)
		})
	}
	if out, err := kubectl(ctx, "annotate", "nodeproxyrules", "written-1", "mine=yes"); err == nil || !strings.Contains(out, "change those instead") {
		t.Errorf("kubectl annotate: %v, %s; want a message about what to change instead", err, out)
	}
	// What people write is not the controller's to write.
	for _, policy := range []client.Object{nodePolicy("written"), servicePolicy("written")} {
		expect(t, controller.Create(ctx, policy), "cannot create resource")
		create(t, server.client, policy)
		policy.SetLabels(map[string]string{"mine": "yes"})
		expect(t, controller.Update(ctx, policy), "cannot update resource")
		expect(t, controller.Delete(ctx, policy), "cannot delete resource")
	}
	// Kubernetes stores objects anew as they are.
	expect(t, server.client.Update(ctx, node.DeepCopy()), "")
	// Their status is for roles to allow: administrators have them all.
	status := node.DeepCopy()
	status.Status.Services = 3
	expect(t, server.client.Status().Update(ctx, status), "")

	// Neither does anybody who may delete them have to ask the controller.
	expect(t, server.client.Delete(ctx, service, client.PropagationPolicy(metav1.DeletePropagationForeground)), "")
	if err := server.client.Get(ctx, client.ObjectKeyFromObject(service), service); err != nil {
		t.Fatalf("an object whose dependents go first: %v", err)
	}
	service.Finalizers = nil // what the garbage collector does
	expect(t, server.client.Update(ctx, service), "")
}

// TestUserRoles looks at nodeproxy-viewer, nodeproxy-policy-editor and
// nodeproxy-editor.
func TestUserRoles(t *testing.T) {
	readManifests(t)
	all := actions(t, namespace)
	reads := everyVerb([]string{"get", "list", "watch"}, "nodeproxies", "nodeproxypolicies", "nodeproxyrules", "serviceproxypolicies", "serviceproxyrules")
	writes := []string{"create", "delete", "patch", "update"}
	for role, want := range map[string][]string{
		"nodeproxy-viewer":        slices.Concat(everybody, reads),
		"nodeproxy-editor":        slices.Concat(everybody, reads, everyVerb(writes, "nodeproxies", "nodeproxypolicies", "serviceproxypolicies")),
		"nodeproxy-policy-editor": slices.Concat(everybody, reads, everyVerb(writes, "nodeproxypolicies", "serviceproxypolicies")),
	} {
		t.Run(role, func(t *testing.T) {
			create(t, server.client, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{GenerateName: role + "-"},
				Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: role}},
				RoleRef:    rbacv1.RoleRef{Kind: "ClusterRole", APIGroup: rbacv1.GroupName, Name: role},
			})
			eventually(t, func(ctx context.Context) error {
				return userClient(t, role).List(ctx, &v1alpha1.NodeProxyRulesList{})
			})
			slices.Sort(want)
			if got := allowed(t, role, nil, all); !slices.Equal(got, want) {
				t.Errorf("%s may do\n%s\nwant\n%s", role, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// TestViewTakesUpViewer: the built-in role view takes up nodeproxy-viewer, and none of the
// other two, nor do edit and admin.
func TestViewTakesUpViewer(t *testing.T) {
	readManifests(t)
	for _, builtIn := range []string{"view", "edit", "admin"} {
		role := &rbacv1.ClusterRole{}
		eventually(t, func(ctx context.Context) error {
			return server.client.Get(ctx, client.ObjectKey{Name: builtIn}, role)
		})
		for _, own := range []string{"nodeproxy-viewer", "nodeproxy-policy-editor", "nodeproxy-editor"} {
			taken := &rbacv1.ClusterRole{}
			if err := server.client.Get(t.Context(), client.ObjectKey{Name: own}, taken); err != nil {
				t.Fatal(err)
			}
			takes := slices.ContainsFunc(role.AggregationRule.ClusterRoleSelectors, func(s metav1.LabelSelector) bool {
				selector, err := metav1.LabelSelectorAsSelector(&s)
				return err == nil && selector.Matches(labels.Set(taken.Labels))
			})
			if want := builtIn == "view" && own == "nodeproxy-viewer"; takes != want {
				t.Errorf("%s takes up %s: %v", builtIn, own, takes)
			}
		}
	}
}

// everyVerb are lines as of allowed for kinds of nodeproxy.io.
func everyVerb(verbs []string, resources ...string) []string {
	lines := map[string]bool{}
	for _, verb := range verbs {
		for _, resource := range resources {
			lines[action{verb: verb, group: v1alpha1.GroupVersion.Group, resource: resource}.String()] = true
		}
	}
	return slices.Sorted(maps.Keys(lines))
}
