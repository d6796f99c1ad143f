package controllers_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/controllers"
)

// keeping has the controller keep what OLM cannot carry.
func keeping(o *controllers.Options) { o.ManageClusterObjects = true }

// policyNames are those of the policies and of their bindings.
var policyNames = []string{"nodeproxy-agent-own-node", "nodeproxy-controller-finalizer", "nodeproxy-controller-startup-taint", "nodeproxy-rendered-objects"}

// olmPermissions gives the controller's service account the permissions that it has under
// OLM only, for the time of the spec. It returns the role of the whole cluster.
func olmPermissions() *rbacv1.ClusterRole {
	GinkgoHelper()
	file, err := os.Open(filepath.Join("..", "config", "manifests", "role_olm.yaml"))
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }() // only read from
	documents := yaml.NewYAMLOrJSONDecoder(file, 4096)
	role := &rbacv1.ClusterRole{}
	for _, object := range []client.Object{
		role, &rbacv1.ClusterRoleBinding{}, &rbacv1.Role{}, &rbacv1.RoleBinding{}, &rbacv1.Role{}, &rbacv1.RoleBinding{},
	} {
		Expect(documents.Decode(object)).To(Succeed())
		Expect(k8s.Create(context.Background(), object)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, object)).To(Succeed()) })
	}
	Expect(documents.Decode(&rbacv1.Role{})).To(MatchError(io.EOF))
	return role
}

// cleanNamespace takes the labels off the namespace, and deletes the events about it,
// when the spec ends.
func cleanNamespace() {
	DeferCleanup(func(ctx SpecContext) {
		labelNamespace(ctx, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":null,"pod-security.kubernetes.io/audit":null,"pod-security.kubernetes.io/warn":null,"mine":null}}}`)
		Expect(k8s.DeleteAllOf(ctx, &eventsv1.Event{}, client.InNamespace(metav1.NamespaceDefault))).To(Succeed())
	})
}

func labelNamespace(ctx context.Context, patch string) {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: leaseNamespace}}
	Expect(k8s.Patch(ctx, namespace, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
}

// podSecurity returns the labels of the namespace that are about that, without what
// they begin with, and mine; for Eventually.
func podSecurity(ctx context.Context) func() (map[string]string, error) {
	return func() (map[string]string, error) {
		namespace := &corev1.Namespace{}
		err := k8s.Get(ctx, client.ObjectKey{Name: leaseNamespace}, namespace)
		out := map[string]string{}
		for key, value := range namespace.Labels {
			if level, found := strings.CutPrefix(key, "pod-security.kubernetes.io/"); found || key == "mine" {
				out[level] = value
			}
		}
		return out, err
	}
}

// policies returns all policies, or bindings, by name; for Eventually.
func policies(ctx context.Context) func() (map[string]admissionv1.ValidatingAdmissionPolicy, error) {
	return func() (map[string]admissionv1.ValidatingAdmissionPolicy, error) {
		var list admissionv1.ValidatingAdmissionPolicyList
		err := k8s.List(ctx, &list)
		out := map[string]admissionv1.ValidatingAdmissionPolicy{}
		for _, one := range list.Items {
			out[one.Name] = one
		}
		return out, err
	}
}

func bindings(ctx context.Context) func() (map[string]admissionv1.ValidatingAdmissionPolicyBinding, error) {
	return func() (map[string]admissionv1.ValidatingAdmissionPolicyBinding, error) {
		var list admissionv1.ValidatingAdmissionPolicyBindingList
		err := k8s.List(ctx, &list)
		out := map[string]admissionv1.ValidatingAdmissionPolicyBinding{}
		for _, one := range list.Items {
			out[one.Name] = one
		}
		return out, err
	}
}

// haveAllNames matches a set with all policies.
func haveAllNames() OmegaMatcher {
	matchers := []OmegaMatcher{HaveLen(len(policyNames))}
	for _, name := range policyNames {
		matchers = append(matchers, HaveKeyWithValue(name, HaveField("OwnerReferences", ConsistOf(HaveField("Kind", "Namespace")))))
	}
	return SatisfyAll(matchers...)
}

// looksAtPolicies returns when the reconciler of cluster objects has looked at all policies
// and bindings, and at the namespace, and is idle. It reads them from a cache of its own, so
// it is woken through both watches of that, by something with the label that they select.
func looksAtPolicies(ctx context.Context, c *running) {
	GinkgoHelper()
	named := metav1.ObjectMeta{Name: marker, Labels: map[string]string{"app.kubernetes.io/part-of": "nodeproxy"}}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: named, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{"example.com"}, APIVersions: []string{"v1"}, Resources: []string{"none"}},
			},
		}}},
		Validations: []admissionv1.Validation{{Expression: "true"}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: named, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: marker, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	for _, wake := range []func() error{
		func() error { return k8s.Create(ctx, policy) }, func() error { return k8s.Create(ctx, binding) },
		func() error { return k8s.Delete(ctx, binding) }, func() error { return k8s.Delete(ctx, policy) },
	} {
		c.looksAt(ctx, "clusterobjects", func() { Expect(wake()).To(Succeed()) }, "/cluster")
	}
}

// deniedEvents returns what events report of objects that cannot be written; for Eventually.
func deniedEvents(ctx context.Context, namespace string) func() ([]string, error) {
	return func() ([]string, error) {
		var list eventsv1.EventList
		err := k8s.List(ctx, &list, client.InNamespace(metav1.NamespaceDefault))
		var notes []string
		for _, e := range list.Items {
			if e.Reason == "ClusterObjectDenied" && e.Regarding.Name == namespace {
				notes = append(notes, e.Note)
			}
		}
		return notes, err
	}
}

var _ = Describe("ClusterObjectsReconciler", func() {
	privileged := map[string]string{"enforce": "privileged", "audit": "privileged", "warn": "privileged"}

	It("maintains policies and labels while there is no NodeProxy, and restores what is changed", func(ctx SpecContext) {
		config := serviceAccount(ctx)
		olmPermissions()
		cleanNamespace()
		controller := startControllerAs(config, keeping)
		Eventually(policies(ctx)).Should(haveAllNames())
		Eventually(bindings(ctx)).Should(haveAllNames())
		Eventually(podSecurity(ctx)).Should(Equal(privileged))

		By("edits by hand")
		labelNamespace(ctx, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted","pod-security.kubernetes.io/warn":null,"mine":"yes"}}}`)
		Eventually(podSecurity(ctx)).Should(Equal(map[string]string{"enforce": "privileged", "audit": "privileged", "warn": "privileged", "mine": "yes"}))
		ignore := []byte(`{"metadata":{"labels":{"app.kubernetes.io/part-of":null},"annotations":{"mine":"yes"}},"spec":{"failurePolicy":"Ignore",
			"matchConstraints":{"excludeResourceRules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*"]}]}}}`)
		policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: policyNames[0]}}
		Expect(k8s.Patch(ctx, policy, client.RawPatch(types.MergePatchType, ignore))).To(Succeed())
		Eventually(policies(ctx)).Should(HaveKeyWithValue(policyNames[0], SatisfyAll(
			HaveField("Spec.FailurePolicy", HaveValue(Equal(admissionv1.Fail))), HaveField("Spec.MatchConstraints.ExcludeResourceRules", BeEmpty()),
			HaveField("Labels", HaveKey("app.kubernetes.io/part-of")),
			HaveField("Annotations", HaveKey("mine")))))
		warn := []byte(`{"spec":{"validationActions":["Warn"]}}`)
		binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: policyNames[3]}}
		Expect(k8s.Patch(ctx, binding, client.RawPatch(types.MergePatchType, warn))).To(Succeed())
		Eventually(bindings(ctx)).Should(HaveKeyWithValue(policyNames[3], HaveField("Spec.ValidationActions", ConsistOf(admissionv1.Deny))))

		By("deletions")
		uid := binding.UID
		Expect(k8s.Delete(ctx, binding)).To(Succeed())
		Expect(k8s.Delete(ctx, policy)).To(Succeed())
		Eventually(bindings(ctx)).Should(HaveKeyWithValue(policyNames[3], HaveField("UID", Not(Equal(uid)))))
		Eventually(policies(ctx)).Should(haveAllNames())

		By("nothing, and a restart, which change nothing")
		looksAtPolicies(ctx, controller) // at what it has written itself, too
		writes := controller.metric("nodeproxy_controller_writes_total")
		looksAtPolicies(ctx, controller)
		Expect(controller.metric("nodeproxy_controller_writes_total")).To(Equal(writes))
		Expect(policies(ctx)()).To(haveAllNames())
		before, err := policies(ctx)()
		Expect(err).NotTo(HaveOccurred())
		controller.stop()
		second := startControllerAs(config, keeping)
		Eventually(func() float64 { return second.metric("nodeproxy_controller_writes_total") }).Should(BeNumerically(">=", 8))
		after, err := policies(ctx)()
		Expect(err).NotTo(HaveOccurred())
		for name := range before {
			Expect(after[name].ResourceVersion).To(Equal(before[name].ResourceVersion), name)
		}
		Expect(deniedEvents(ctx, leaseNamespace)()).To(BeEmpty())
	})

	It("restores the whole of what it finds without the label, be it of a former release or changed by hand", func(ctx SpecContext) {
		config := serviceAccount(ctx)
		olmPermissions()
		cleanNamespace()
		first := startControllerAs(config, keeping)
		Eventually(policies(ctx)).Should(haveAllNames())
		Eventually(bindings(ctx)).Should(haveAllNames())
		policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: policyNames[0]}}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(policy), policy)).To(Succeed())
		binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: policyNames[0]}}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(binding), binding)).To(Succeed())
		wantPolicy, wantBinding := policy.Spec, binding.Spec
		restored := func() {
			GinkgoHelper()
			labeled := SatisfyAll(HaveField("Labels", HaveKeyWithValue("app.kubernetes.io/part-of", "nodeproxy")), HaveField("Annotations", HaveKey("mine")))
			Eventually(policies(ctx)).Should(HaveKeyWithValue(policyNames[0], SatisfyAll(labeled, HaveField("Spec", Equal(wantPolicy)))))
			Eventually(bindings(ctx)).Should(HaveKeyWithValue(policyNames[0], SatisfyAll(labeled, HaveField("Spec", Equal(wantBinding)))))
		}
		change := func(object client.Object, patch string) {
			GinkgoHelper()
			Expect(k8s.Patch(ctx, object, client.RawPatch(types.JSONPatchType, []byte(patch)))).To(Succeed())
		}
		const noLabel = `[{"op":"remove","path":"/metadata/labels/app.kubernetes.io~1part-of"},{"op":"add","path":"/metadata/annotations","value":{"mine":"yes"}},`

		By("a condition that is never so, and a binding to few namespaces")
		change(policy, noLabel+`{"op":"add","path":"/spec/matchConditions/-","value":{"name":"never","expression":"false"}}]`)
		change(binding, noLabel+`{"op":"add","path":"/spec/matchResources","value":{"namespaceSelector":{"matchLabels":{"few":"yes"}}}}]`)
		restored()

		By("those of a former release")
		first.stop()
		change(policy, noLabel+`{"op":"replace","path":"/spec/matchConditions/0/name","value":"former"},
			{"op":"add","path":"/spec/variables/0","value":{"name":"former","expression":"1"}},
			{"op":"replace","path":"/spec/validations","value":[{"expression":"false","message":"another message"}]}]`)
		// Deny, which apply would add, is not allowed beside Warn.
		change(binding, noLabel+`{"op":"replace","path":"/spec/validationActions","value":["Warn"]},
			{"op":"add","path":"/spec/paramRef","value":{"name":"of-nothing","parameterNotFoundAction":"Allow"}}]`)
		startControllerAs(config, keeping)
		restored()
		Expect(deniedEvents(ctx, leaseNamespace)()).To(BeEmpty())
	})

	It("keeps the labels where it may not follow the policies, reports it, and makes them once it may", func(ctx SpecContext) {
		config := serviceAccount(ctx)
		role := olmPermissions()
		cleanNamespace()
		permissions := role.Rules
		Expect(permissions[0].Verbs).To(Equal([]string{"list", "watch"}))
		role.Rules = permissions[1:]
		Expect(k8s.Update(ctx, role)).To(Succeed())
		startControllerAs(config, keeping)
		Eventually(podSecurity(ctx)).Should(Equal(privileged))
		missing := func(kind string) OmegaMatcher {
			return SatisfyAll(ContainSubstring(`cannot list resource "`+kind+`"`), ContainSubstring("ClusterRole nodeproxy-controller-olm"))
		}
		Eventually(deniedEvents(ctx, leaseNamespace), "30s").Should(ConsistOf(missing("validatingadmissionpolicies"), missing("validatingadmissionpolicybindings")))
		Expect(policies(ctx)()).To(BeEmpty())
		labelNamespace(ctx, `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
		Eventually(podSecurity(ctx)).Should(Equal(privileged))
		role.Rules = permissions
		Expect(k8s.Update(ctx, role)).To(Succeed())
		Eventually(policies(ctx), "1m").Should(haveAllNames())
		Eventually(bindings(ctx)).Should(haveAllNames())
	})

	It("makes the policies where it may list them only, and states what it may not", func(ctx SpecContext) {
		config := serviceAccount(ctx)
		role := olmPermissions()
		cleanNamespace()
		role.Rules[0].Verbs = []string{"list"}
		Expect(k8s.Update(ctx, role)).To(Succeed())
		startControllerAs(config, keeping)
		Eventually(policies(ctx)).Should(haveAllNames())
		Eventually(bindings(ctx)).Should(haveAllNames())
		missing := func(kind string) OmegaMatcher { return ContainSubstring(`cannot watch resource "` + kind + `"`) }
		Eventually(deniedEvents(ctx, leaseNamespace), "30s").Should(ConsistOf(missing("validatingadmissionpolicies"), missing("validatingadmissionpolicybindings")))
	})

	It("keeps the labels while the API server does not state how it serves policies, and makes them once it does", func(ctx SpecContext) {
		config := rest.CopyConfig(serviceAccount(ctx))
		olmPermissions()
		cleanNamespace()
		unavailable := &atomic.Bool{}
		unavailable.Store(true)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return withoutPolicies{RoundTripper: next, status: http.StatusServiceUnavailable, now: unavailable.Load}
		})
		startControllerAs(config, keeping)
		Eventually(podSecurity(ctx)).Should(Equal(privileged))
		Eventually(deniedEvents(ctx, leaseNamespace)).Should(ConsistOf(ContainSubstring("does not report how it serves")))
		unavailable.Store(false)
		Eventually(policies(ctx), "30s").Should(haveAllNames())
		Eventually(bindings(ctx)).Should(haveAllNames())
	})

	It("leaves all of that alone without being asked", func(ctx SpecContext) {
		cleanNamespace()
		controller := startController()
		switchOn(ctx)
		labelNamespace(ctx, `{"metadata":{"labels":{"mine":"yes"}}}`) // wakes the reconciler of the labels
		controller.looks(ctx, "service", "node", "rollout", "nodeproxy", "servicepolicy", "startup-taint", "apiservers")
		Expect(controller.reconciles.begun()).NotTo(HaveKey(HavePrefix("clusterobjects ")))
		Expect(policies(ctx)()).To(BeEmpty())
		labelNamespace(ctx, `{"metadata":{"labels":{"mine":null}}}`)
		Expect(podSecurity(ctx)()).To(BeEmpty())
	})

	It("takes over the policies of an installation in another namespace, and states what it may not write", func(ctx SpecContext) {
		config := serviceAccount(ctx)
		olmPermissions()
		install(ctx, "rendered.yaml")
		other := newNamespace(ctx)
		startControllerAs(config, keeping, func(o *controllers.Options) { o.Namespace = other })
		Eventually(policies(ctx)).Should(SatisfyAll(haveAllNames(), HaveKeyWithValue("nodeproxy-rendered-objects", SatisfyAll(
			HaveField("OwnerReferences", ConsistOf(HaveField("Name", other))),
			HaveField("Spec.MatchConditions", ConsistOf(HaveField("Expression", SatisfyAll(
				ContainSubstring("system:serviceaccount:"+other+":nodeproxy-controller"), Not(ContainSubstring(leaseNamespace))))))))))
		Eventually(policies(ctx)).Should(HaveKeyWithValue("nodeproxy-agent-own-node",
			HaveField("Spec.Validations", ContainElement(HaveField("Expression", HaveSuffix("request.namespace == '"+other+"'"))))))
		Eventually(bindings(ctx)).Should(haveAllNames())
		Eventually(deniedEvents(ctx, other)).Should(ConsistOf(SatisfyAll(
			ContainSubstring("denies the Namespace "+other), ContainSubstring("cannot patch resource"))))
		Expect(podSecurity(ctx)()).To(BeEmpty()) // of the namespace of others
	})

	It("keeps the labels where the API server knows no such policies, and reports it", func(ctx SpecContext) {
		config := rest.CopyConfig(serviceAccount(ctx))
		olmPermissions()
		cleanNamespace()
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return withoutPolicies{RoundTripper: next, status: http.StatusNotFound, now: func() bool { return true }}
		})
		startControllerAs(config, keeping)
		Eventually(podSecurity(ctx)).Should(Equal(privileged))
		Eventually(deniedEvents(ctx, leaseNamespace)).Should(ConsistOf(ContainSubstring("does not serve ValidatingAdmissionPolicy")))
		Expect(policies(ctx)()).To(BeEmpty())
		switchOn(ctx)
		Eventually(summary(ctx)).Should(HaveField("Version", "v0.0.0-test")) // all else goes on
	})
})

// withoutPolicies is the way to an API server that now does not know admission
// policies, or does not answer about them.
type withoutPolicies struct {
	http.RoundTripper
	status int
	now    func() bool
}

func (w withoutPolicies) RoundTrip(r *http.Request) (*http.Response, error) {
	if !w.now() {
		return w.RoundTripper.RoundTrip(r)
	}
	if r.URL.Path == "/apis" { // the list of groups alone, without their kinds
		r = r.Clone(r.Context())
		r.Header.Set("Accept", "application/json")
	}
	if !strings.HasPrefix(r.URL.Path, "/apis/admissionregistration.k8s.io") {
		return w.RoundTripper.RoundTrip(r)
	}
	if r.Body != nil {
		if err := r.Body.Close(); err != nil {
			return nil, err
		}
	}
	return &http.Response{
		StatusCode: w.status, Status: fmt.Sprint(w.status, " ", http.StatusText(w.status)), Request: r, ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader(http.StatusText(w.status))),
	}, nil
}
