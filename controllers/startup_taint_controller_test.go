package controllers_test

import (
	"context"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// starting is the taint with which kubelets register, and theirs is another one.
var (
	starting = corev1.Taint{Key: v1alpha1.TaintAgentNotReady, Effect: corev1.TaintEffectNoSchedule}
	theirs   = corev1.Taint{Key: "example.com/theirs", Value: "x", Effect: corev1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: time.Unix(1e9, 0)}}
)

// tainted has a Node created with taints.
func tainted(taints ...corev1.Taint) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = taints }
}

// taints returns the keys of a Node's taints, but for those that the API server
// puts on Nodes that are not Ready; for Eventually.
func taints(ctx context.Context, node string) func() ([]string, error) {
	return func() ([]string, error) {
		n := &corev1.Node{}
		err := k8s.Get(ctx, client.ObjectKey{Name: node}, n)
		keys := []string{}
		for _, t := range n.Spec.Taints {
			if t.Key != corev1.TaintNodeNotReady {
				keys = append(keys, t.Key)
			}
		}
		return keys, err
	}
}

// agentRun is an agent that started at a time.
type agentRun struct {
	node    string
	started time.Time
}

// reports writes the conditions Accepted and Programmed as "True" or "False", and
// the reason of the latter.
func (a agentRun) reports(ctx context.Context, accepted, programmed metav1.ConditionStatus, reason string) {
	GinkgoHelper()
	Eventually(func() error {
		rules, err := nodeRules(ctx, a.node)()
		if err != nil {
			return err
		}
		condition := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
			return metav1.Condition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.Now()}
		}
		rules.Status.Conditions = []metav1.Condition{
			condition(v1alpha1.ConditionAccepted, accepted, "Accepted"), condition(v1alpha1.ConditionProgrammed, programmed, reason),
		}
		rules.Status.Agent = &v1alpha1.AgentReport{Version: "v0.1.0", StartTime: metav1.NewTime(a.started.Truncate(time.Second)), FormatVersions: []int32{1}}
		return k8s.Status().Update(ctx, rules)
	}).Should(Succeed())
}

// renews renews the agent's Lease.
func (a agentRun) renews(ctx context.Context) {
	GinkgoHelper()
	renewLease(ctx, a.node, "1")
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: v1alpha1.AgentLeaseName(a.node)}}
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(lease), lease)).To(Succeed())
	lease.Spec.AcquireTime = &metav1.MicroTime{Time: a.started}
	Expect(k8s.Update(ctx, lease)).To(Succeed())
}

// goesOn renews the Lease as the agent does, but more often, and returns the
// taints of its node; for Eventually. A controller takes what a Lease states when it
// first sees the Node for old.
func (a agentRun) goesOn(ctx context.Context) func() ([]string, error) {
	return func() ([]string, error) {
		a.renews(ctx)
		return taints(ctx, a.node)()
	}
}

var _ = Describe("the startup taint", func() {
	It("is taken off once the agent serves pods, and other taints stay", func(ctx SpecContext) {
		switchOn(ctx)
		noExecute := starting
		noExecute.Effect = corev1.TaintEffectNoExecute
		for name, taints := range map[string][]corev1.Taint{
			"programmed": {theirs, starting, noExecute}, "held": {starting}, "compared": {starting}, "differs": {starting}, "beside": {starting},
			"pending": {starting, theirs}, "denied": {starting}, "silent": {starting}, "no-lease": {starting}, "untainted": {theirs},
		} {
			createNode(ctx, name, tainted(taints...))
		}
		controller := startController()
		agents := map[string]agentRun{}
		for node, programmed := range map[string]string{
			"programmed": v1alpha1.ReasonProgrammed, "held": v1alpha1.ReasonRetained, "compared": v1alpha1.ReasonAuditInSync,
			"denied": v1alpha1.ReasonProgrammed, "no-lease": v1alpha1.ReasonProgrammed, "untainted": v1alpha1.ReasonProgrammed,
			"differs": v1alpha1.ReasonAuditDiffers, "beside": v1alpha1.ReasonConflictingProxy, "pending": v1alpha1.ReasonPending,
			"silent": v1alpha1.ReasonAgentNotResponding,
		} {
			a := agentRun{node, time.Now()}
			agents[node] = a
			if node != "no-lease" {
				a.renews(ctx)
			}
			accepted, status := metav1.ConditionTrue, metav1.ConditionTrue
			switch node {
			case "differs", "beside", "pending":
				status = metav1.ConditionFalse
			case "silent":
				status = metav1.ConditionUnknown
			case "denied":
				accepted = metav1.ConditionFalse
			}
			a.reports(ctx, accepted, status, programmed)
		}
		Eventually(agents["programmed"].goesOn(ctx), "40s", "500ms").Should(Equal([]string{theirs.Key}))
		for _, node := range []string{"held", "compared", "differs", "beside"} {
			Eventually(agents[node].goesOn(ctx), "40s", "500ms").Should(BeEmpty(), node)
		}
		// The reports of now came by with Leases that had not been renewed since the Nodes were
		// seen first, so what decides comes once more.
		for _, node := range []string{"pending", "denied", "silent", "no-lease"} {
			Expect(taints(ctx, node)()).To(ContainElement(starting.Key), node) // else nothing wakes it
			if node != "no-lease" {
				agents[node].renews(ctx)
			}
			controller.looksAt(ctx, "startup-taint", func() { touchReport(ctx, node) }, "/"+node)
		}
		Expect(taints(ctx, "pending")()).To(Equal([]string{starting.Key, theirs.Key}))
		for _, node := range []string{"denied", "silent", "no-lease"} {
			Expect(taints(ctx, node)()).To(Equal([]string{starting.Key}), node)
		}
		Expect(taints(ctx, "untainted")()).To(Equal([]string{theirs.Key}))
	})

	It("stays on a Node that is created anew until its agent of now has reported", func(ctx SpecContext) {
		switchOn(ctx)
		node := createNode(ctx, "n1")
		controller := startController()
		former := agentRun{"n1", time.Now().Add(-time.Hour)}
		former.renews(ctx)
		former.reports(ctx, metav1.ConditionTrue, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
		Expect(k8s.Delete(ctx, node)).To(Succeed())
		Eventually(nodeRules(ctx, "n1")).Should(HaveField("Annotations", HaveKey(v1alpha1.AnnotationNodeAbsentSince)))
		createNode(ctx, "n1", tainted(starting))
		Eventually(nodeRules(ctx, "n1")).Should(HaveField("Annotations", Not(HaveKey(v1alpha1.AnnotationNodeAbsentSince))))
		controller.looks(ctx, "startup-taint")
		Expect(taints(ctx, "n1")()).To(Equal([]string{starting.Key}))

		By("the agent of now, which renews its Lease before it reports")
		agent := agentRun{"n1", time.Now()}
		for range 2 {
			agent.renews(ctx)
			controller.looksAt(ctx, "startup-taint", func() { touchReport(ctx, "n1") }, "/n1")
			Expect(taints(ctx, "n1")()).To(Equal([]string{starting.Key}))
		}
		agent.reports(ctx, metav1.ConditionTrue, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
		Eventually(taints(ctx, "n1"), "40s").Should(BeEmpty())
	})

	It("is all that the controller may change of a Node, and its finalizer of NodeProxy", func(ctx SpecContext) {
		config := serviceAccount(ctx)
		install(ctx, "nodes.yaml")
		install(ctx, "nodeproxy.yaml")
		node := createNode(ctx, "n1", tainted(theirs, starting))
		np := switchOn(ctx)
		as, err := client.New(config, client.Options{Scheme: k8s.Scheme()})
		Expect(err).NotTo(HaveOccurred())
		patch := func(object client.Object, text string) error {
			return as.Patch(ctx, object.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(text)), client.DryRunAll)
		}
		const key = v1alpha1.TaintAgentNotReady
		Eventually(func() error { return patch(node, `{"metadata":{"labels":{"a":"b"}}}`) }).Should(MatchError(ContainSubstring("can only remove the taint")))
		for _, text := range []string{
			`{"metadata":{"annotations":{"a":"b"}}}`,
			`{"metadata":{"finalizers":["example.com/a"]}}`,
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n2","uid":"1"}]}}`,
			`{"spec":{"unschedulable":true}}`,
			`{"spec":{"providerID":"x"}}`,
			`{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}`,
			`{"spec":{"taints":null}}`,
			`{"spec":{"taints":[{"key":"` + key + `","effect":"NoSchedule"}]}}`,
			`{"spec":{"taints":[{"key":"example.com/theirs","value":"y","effect":"NoExecute","timeAdded":"2001-09-09T01:46:40Z"}]}}`,
			`{"spec":{"taints":[{"key":"example.com/new","effect":"NoSchedule"}]}}`,
		} {
			Expect(patch(node, text)).To(MatchError(ContainSubstring("can only remove the taint")), text)
		}
		Expect(as.Update(ctx, node.DeepCopy())).To(WithTransform(apierrors.IsForbidden, BeTrue()), "the role has patch alone")
		Eventually(func() error { return patch(np, `{"spec":{"settings":{"enforcement":"Audit"}}}`) }).Should(MatchError(ContainSubstring("can only change its own finalizer")))
		for _, text := range []string{`{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"annotations":{"a":"b"}}}`, `{"metadata":{"finalizers":["example.com/a"]}}`} {
			Expect(patch(np, text)).To(MatchError(ContainSubstring("can only change its own finalizer")), text)
		}

		By("the controller itself, with that token")
		patchNodeProxy(ctx, cleanup)
		startControllerAs(config)
		Eventually(finalizers(ctx)).Should(Equal([]string{v1alpha1.FinalizerCleanup}))
		agent := agentRun{"n1", time.Now()}
		agent.reports(ctx, metav1.ConditionTrue, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
		Eventually(agent.goesOn(ctx), "40s", "500ms").Should(Equal([]string{theirs.Key}))
		patchNodeProxy(ctx, retain)
		Eventually(finalizers(ctx)).Should(BeEmpty())

		By("others, whom it does not concern")
		Expect(k8s.Patch(ctx, node, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`)))).To(Succeed())
	})
})

// serviceAccount creates the controller's service account with its roles, for the
// time of the spec, and returns how to be it: by a token of the API server's.
func serviceAccount(ctx context.Context) *rest.Config {
	GinkgoHelper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: controllerUser}}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}}
	for _, object := range []client.Object{
		account,
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "as-account"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: controllerUser},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "as-account"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: controllerUser},
		},
	} {
		Expect(k8s.Create(ctx, object)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, object)).To(Succeed()) })
	}
	request := &authenticationv1.TokenRequest{}
	Expect(k8s.SubResource("token").Create(ctx, account, request)).To(Succeed())
	config := rest.AnonymousClientConfig(roleConfig)
	config.BearerToken = request.Status.Token
	return config
}

// install creates the objects of a file of config/admission, for the time of the spec.
// Admission policies go with every spec anyhow.
func install(ctx context.Context, name string) {
	GinkgoHelper()
	file, err := os.Open(filepath.Join("..", "config", "admission", name))
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = file.Close() }() // only read from
	documents := yaml.NewYAMLOrJSONDecoder(file, 4096)
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	Expect(documents.Decode(policy)).To(Succeed())
	Expect(documents.Decode(binding)).To(Succeed())
	Expect(binding.Spec.PolicyName).To(Equal(policy.Name))
	Expect(k8s.Create(ctx, policy)).To(Succeed())
	Expect(k8s.Create(ctx, binding)).To(Succeed())
}
