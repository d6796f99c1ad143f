package controllers_test

import (
	"context"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers"
	"github.com/nodeproxy-io/nodeproxy/controllers/preview"
)

// previewed is what is printed of the rendered objects that follow from what there is,
// with written laid over it; and how they differ from those that are stored.
func previewed(ctx context.Context, written *preview.Objects, prune bool) (text, difference, summary string) {
	GinkgoHelper()
	live, err := controllers.LiveObjects(ctx, k8s)
	Expect(err).NotTo(HaveOccurred())
	if written != nil {
		live.Overlay(written, prune)
	}
	result := preview.Render(live)
	Expect(result.Problems).To(BeEmpty())
	changes := preview.Compare(live, result)
	var printed, differences strings.Builder
	Expect(result.Write(&printed)).To(Succeed())
	Expect(changes.Write(&differences)).To(Succeed())
	return printed.String(), differences.String(), changes.Summary()
}

// written is what is printed of the rendered objects that are stored; for Eventually.
func written(ctx context.Context) func() (string, error) {
	return func() (string, error) {
		live, err := controllers.LiveObjects(ctx, k8s)
		if err != nil {
			return "", err
		}
		slices.SortFunc(live.NodeRules, func(a, b v1alpha1.NodeProxyRules) int { return strings.Compare(a.Name, b.Name) })
		slices.SortFunc(live.ServiceRules, func(a, b v1alpha1.ServiceProxyRules) int { return strings.Compare(a.Name, b.Name) })
		var printed strings.Builder
		err = (&preview.Result{Nodes: live.NodeRules, Services: live.ServiceRules}).Write(&printed)
		return printed.String(), err
	}
}

var _ = Describe("preview", func() {
	const nothing = "0 NodeProxyRules and 0 ServiceProxyRules would change"
	policy := func(name, pool string, priority int32, settings v1alpha1.WrittenSettings) *v1alpha1.NodeProxyPolicy {
		return &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeProxyPolicySpec{
			Priority: &priority, NodeSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{"pool": pool}}, Settings: settings,
		}}
	}
	BeforeEach(func() {
		DeferCleanup(func(ctx SpecContext) {
			Expect(k8s.DeleteAllOf(ctx, &v1alpha1.NodeProxyPolicy{})).To(Succeed())
			Expect(k8s.DeleteAllOf(ctx, &v1alpha1.ServiceProxyPolicy{})).To(Succeed())
		})
	})

	It("states what the controllers then write", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		for name, pool := range map[string]string{"edge-1": "edge", "edge-2": "edge", "inner-1": "inner"} {
			createNode(ctx, name, func(n *corev1.Node) { n.Labels["pool"] = pool })
		}
		createService(ctx, ns, "cart", func(svc *corev1.Service) {
			svc.Spec.Type = corev1.ServiceTypeLoadBalancer
			svc.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
		})
		createService(ctx, ns, "headless", func(svc *corev1.Service) { svc.Spec.ClusterIP = corev1.ClusterIPNone })
		createSlice(ctx, ns, "cart", "cart-1", at("10.1.0.1", "edge-1"), at("10.1.0.2", "inner-1"), in(at("10.1.0.3", "edge-1"), false, true, true))
		createSlice(ctx, ns, "cart", "cart-2", at("10.1.0.4", "edge-1"))

		By("creating a NodeProxy")
		first := &preview.Objects{NodeProxy: &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}}
		expected, _, summary := previewed(ctx, first, false)
		Expect(summary).To(HavePrefix(nothing + ", 3 NodeProxyRules and "))
		switchOn(ctx)
		startController()
		Eventually(written(ctx)).Should(Equal(expected))
		_, difference, summary := previewed(ctx, nil, false)
		Expect(difference).To(BeEmpty())
		Expect(summary).To(Equal(nothing))

		By("creating policies, one of which wins a field of the other")
		mode, scheduler, other := v1alpha1.ModeIPVS, "lc", "sh"
		edge := policy("edge", "edge", 1, v1alpha1.WrittenSettings{Mode: &mode, IPVS: &v1alpha1.IPVSSettings{Scheduler: &scheduler}})
		strong := policy("strong", "edge", 2, v1alpha1.WrittenSettings{IPVS: &v1alpha1.IPVSSettings{Scheduler: &other}})
		files := &preview.Objects{NodePolicies: []v1alpha1.NodeProxyPolicy{*edge, *strong}}
		expected, difference, summary = previewed(ctx, files, false)
		Expect(summary).To(Equal("2 NodeProxyRules and 0 ServiceProxyRules would change"))
		Expect(difference).To(ContainSubstring("+      scheduler: sh\n"))
		Expect(k8s.Create(ctx, strong)).To(Succeed())
		Expect(k8s.Create(ctx, edge)).To(Succeed())
		Eventually(written(ctx)).Should(Equal(expected))
		_, _, summary = previewed(ctx, files, true)
		Expect(summary).To(Equal(nothing))

		By("deleting one")
		expected, _, summary = previewed(ctx, &preview.Objects{NodePolicies: files.NodePolicies[:1]}, true)
		Expect(summary).To(Equal("2 NodeProxyRules and 0 ServiceProxyRules would change"))
		Expect(k8s.Delete(ctx, strong)).To(Succeed())
		Eventually(written(ctx)).Should(Equal(expected))

		By("changing the label of a Node")
		node := &corev1.Node{}
		Expect(k8s.Get(ctx, client.ObjectKey{Name: "inner-1"}, node)).To(Succeed())
		node.Labels["pool"] = "edge"
		Expect(k8s.Update(ctx, node)).To(Succeed())
		expected, _, _ = previewed(ctx, nil, false)
		Eventually(written(ctx)).Should(Equal(expected))
		Expect(nodeRules(ctx, "inner-1")()).To(HaveField("Spec.Policies", Equal([]string{"edge"})))
	})

	It("states what the controllers then make of Services", func(ctx SpecContext) {
		ns, other := newNamespace(ctx), newNamespace(ctx)
		switchOn(ctx)
		startController()
		nodePort := func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeNodePort }
		createService(ctx, ns, "cart", nodePort, func(svc *corev1.Service) { svc.Labels = map[string]string{"app": "cart"} })
		createService(ctx, ns, "pay", nodePort)
		createService(ctx, other, "pay", nodePort)
		createSlice(ctx, ns, "cart", "cart-1", at("10.1.0.1", "edge-1"))
		Eventually(rulesOf(ctx, other, "pay")).ShouldNot(BeNil())
		Eventually(func() (string, error) {
			_, _, summary := previewed(ctx, nil, false)
			return summary, nil
		}).Should(Equal(nothing))

		By("creating policies, one of which wins a field of the other")
		disabled, enabled, scheduler := v1alpha1.Disabled, v1alpha1.Enabled, "sh"
		closed := &v1alpha1.ServiceProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "closed"}, Spec: v1alpha1.ServiceProxyPolicySpec{
			NamespaceSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}},
			Overrides:         v1alpha1.ServiceOverrides{NodePorts: &disabled, IPVSScheduler: &scheduler},
		}}
		cart := &v1alpha1.ServiceProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "cart"}, Spec: v1alpha1.ServiceProxyPolicySpec{
			Priority: new(int32(1)), ServiceSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{"app": "cart"}},
			Overrides: v1alpha1.ServiceOverrides{NodePorts: &enabled, SessionAffinity: &v1alpha1.SessionAffinityOverride{ClientIPTimeoutSeconds: 600}},
		}}
		files := &preview.Objects{ServicePolicies: []v1alpha1.ServiceProxyPolicy{*closed, *cart}}
		expected, _, summary := previewed(ctx, files, false)
		Expect(summary).To(Equal("0 NodeProxyRules and 2 ServiceProxyRules would change"))
		Expect(k8s.Create(ctx, closed)).To(Succeed())
		Expect(k8s.Create(ctx, cart)).To(Succeed())
		Eventually(written(ctx)).Should(Equal(expected))
		Expect(rulesOf(ctx, ns, "cart")()).To(HaveField("Spec.Policies", Equal([]string{"cart", "closed"})))

		By("changing one and deleting the other")
		before := client.MergeFrom(closed.DeepCopy()) // its status is written meanwhile
		closed.Spec.NamespaceSelector.MatchLabels[corev1.LabelMetadataName] = other
		expected, _, summary = previewed(ctx, &preview.Objects{ServicePolicies: []v1alpha1.ServiceProxyPolicy{*closed}}, true)
		Expect(summary).To(Equal("0 NodeProxyRules and 3 ServiceProxyRules would change"))
		Expect(k8s.Patch(ctx, closed, before)).To(Succeed())
		Expect(k8s.Delete(ctx, cart)).To(Succeed())
		Eventually(written(ctx)).Should(Equal(expected))
	})
})
