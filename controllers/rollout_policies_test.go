package controllers_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var _ = Describe("policies for nodes", func() {
	ipvs := func(p *v1alpha1.NodeProxyPolicy) { p.Spec.Settings.Mode = new(v1alpha1.ModeIPVS) }
	most := func(text string) func(*v1alpha1.NodeProxyPolicy) {
		return func(p *v1alpha1.NodeProxyPolicy) {
			p.Spec.Rollout = &v1alpha1.RolloutSettings{MaxUnavailable: percent(text)}
		}
	}
	// scheduled returns the nodes that are given an IPVS scheduler, by name.
	scheduled := func(ctx context.Context, scheduler string) func() ([]string, error) {
		return nodesWith(ctx, func(s *v1alpha1.ProxySettings) bool { return *s.IPVS.Scheduler == scheduler })
	}
	// applied has nodes echo until all of them have a mode.
	applied := func(ctx context.Context, mode v1alpha1.ProxyMode, names ...string) {
		GinkgoHelper()
		Eventually(func() ([]string, error) {
			echo(ctx, names...)
			return inMode(ctx, mode)()
		}).Should(ContainElements(names))
		echo(ctx, names...)
	}
	// shaped switches on, with a policy that some nodes have.
	shaped := func(ctx context.Context, count int) (*v1alpha1.NodeProxyPolicy, []string, *running) {
		GinkgoHelper()
		switchOn(ctx)
		policy := createPolicy(ctx, "edge", "pool=edge", ipvs, most("50%"))
		controller := startController()
		names := createMany(ctx, "edge", count)
		echo(ctx, names...)
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("True Applied"))
		return policy, names, controller
	}

	It("roll out side by side, and a node that both change uses the budget of both", func(ctx SpecContext) {
		switchOn(ctx)
		controller := startController()
		createPool(ctx, "edge", "both", "edge-1", "edge-2")
		createPool(ctx, "gateways", "gw-1", "gw-2")
		both := nodeNamed("both")
		edit(ctx, both, func() { both.Labels["gateway"] = "yes" })
		for _, name := range []string{"gw-1", "gw-2"} {
			node := nodeNamed(name)
			edit(ctx, node, func() { node.Labels["gateway"] = "yes" })
		}
		echo(ctx, "both", "edge-1", "edge-2", "gw-1", "gw-2")
		createPolicy(ctx, "edge", "pool=edge", ipvs)
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(Equal([]string{"both"}))
		createPolicy(ctx, "gateways", "gateway=yes", func(p *v1alpha1.NodeProxyPolicy) {
			p.Spec.Settings.IPVS = &v1alpha1.IPVSSettings{Scheduler: new("sh")}
		})
		By("both being unavailable, so that neither policy continues")
		Eventually(scheduled(ctx, "sh")).Should(Equal([]string{"both"}), "that one again, as it is unavailable anyway")
		controller.looks(ctx, "rollout")
		Expect(scheduled(ctx, "sh")()).To(HaveLen(1))
		Expect(inMode(ctx, v1alpha1.ModeIPVS)()).To(Equal([]string{"both"}))
		echo(ctx, "both")
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(Equal([]string{"both", "edge-1"}))
		Eventually(scheduled(ctx, "sh")).Should(Equal([]string{"both", "gw-1"}))
		controller.looks(ctx, "rollout")
		Expect(scheduled(ctx, "sh")()).To(HaveLen(2))
	})

	It("are edited in the middle: no node gets outdated settings", func(ctx SpecContext) {
		switchOn(ctx)
		startController()
		names := createMany(ctx, "edge", 4)
		echo(ctx, names...)
		policy := createPolicy(ctx, "edge", "pool=edge", ipvs)
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(Equal(names[:1]))
		edit(ctx, policy, func() {
			policy.Spec.Settings.Mode, policy.Spec.Settings.IPVS = nil, &v1alpha1.IPVSSettings{Scheduler: new("sh")}
		})
		Eventually(scheduled(ctx, "sh")).Should(Equal(names[:1]), "first the node that has the former change")
		for i := range names {
			echo(ctx, names[i])
			Eventually(scheduled(ctx, "sh")).Should(Equal(names[:min(i+2, 4)]))
		}
		Expect(inMode(ctx, v1alpha1.ModeIPVS)()).To(BeEmpty())
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("True Applied"))
	})

	It("are deleted, and NodeProxy's budget decides how fast their settings go", func(ctx SpecContext) {
		policy, names, controller := shaped(ctx, 4)
		Expect(k8s.Delete(ctx, policy)).To(Succeed())
		Eventually(inMode(ctx, v1alpha1.ModeIPTables)).Should(Equal(names[:1]))
		controller.looks(ctx, "rollout")
		Expect(inMode(ctx, v1alpha1.ModeIPTables)()).To(HaveLen(1))
		Expect(nodeRules(ctx, names[0])()).To(HaveField("Spec.Policies", BeEmpty()))
		Expect(nodeRules(ctx, names[1])()).To(HaveField("Spec.Policies", Equal([]string{"edge"})))
		Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("False Progressing: 0 of 4 nodes done, 1 being updated (edge-01), 3 waiting")))
		applied(ctx, v1alpha1.ModeIPTables, names...)
		Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("True AllProgrammed")))
	})

	It("decide how fast their settings go where they select a node no more", func(ctx SpecContext) {
		policy, names, controller := shaped(ctx, 4)
		edit(ctx, policy, func() { policy.Spec.Rollout.MaxUnavailable = percent("2") })
		for _, name := range names[:3] {
			node := nodeNamed(name)
			edit(ctx, node, func() { node.Labels["pool"] = "former" })
		}
		Eventually(inMode(ctx, v1alpha1.ModeIPTables)).Should(HaveLen(2))
		controller.looks(ctx, "rollout")
		Expect(inMode(ctx, v1alpha1.ModeIPTables)()).To(HaveLen(2))
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("False Progressing"))
		applied(ctx, v1alpha1.ModeIPTables, names[:3]...)
		Eventually(policyReady(ctx, policy)).Should(Equal("True Applied: The selected node has applied its settings."))
		Expect(inMode(ctx, v1alpha1.ModeIPVS)()).To(Equal(names[3:]))
	})

	It("are restored at once where their settings are edited", func(ctx SpecContext) {
		_, names, _ := shaped(ctx, 2)
		for range 2 { // also when another one is unavailable
			rules, err := nodeRules(ctx, names[0])()
			Expect(err).NotTo(HaveOccurred())
			want := *rules.Spec.DeepCopy()
			rules.Spec.Settings.Mode, rules.Spec.Policies = new(v1alpha1.ModeIPTables), nil
			Expect(k8s.Update(ctx, rules)).To(Succeed())
			Eventually(nodeRules(ctx, names[0])).Should(HaveField("Spec", Equal(want)))
			reportAs(ctx, names[1], func(r *v1alpha1.NodeProxyRules) {
				setProgrammed(r, metav1.ConditionFalse, v1alpha1.ReasonFailed, "something else")
			})
		}
	})

	It("that set what others set report that, and only names are written where nothing else changes", func(ctx SpecContext) {
		policy, names, _ := shaped(ctx, 2)
		weaker := createPolicy(ctx, "weaker", "", func(p *v1alpha1.NodeProxyPolicy) {
			p.Spec.Settings.Mode, p.Spec.Settings.Fallback = new(v1alpha1.ModeIPTables), new(v1alpha1.FallbackNone)
		})
		Eventually(policyCondition(ctx, weaker, v1alpha1.ConditionOverridden)).Should(Equal(
			"True Overridden: Policy edge (priority 0, as this one: the lower name wins) sets spec.settings.mode."))
		Eventually(policyReady(ctx, weaker)).Should(HavePrefix("True Applied"))
		for _, name := range names {
			Eventually(nodeRules(ctx, name)).Should(HaveField("Spec.Policies", Equal([]string{"edge", "weaker"})))
		}
		edit(ctx, policy, func() { policy.Spec.Priority = new(int32(-1)) })
		Eventually(policyCondition(ctx, policy, v1alpha1.ConditionOverridden)).Should(Equal(
			"True Overridden: Policy weaker (priority 0) sets spec.settings.mode."))
		Eventually(policyCondition(ctx, weaker, v1alpha1.ConditionOverridden)).Should(HavePrefix("False NotOverridden"))
	})

	It("that select nothing report that", func(ctx SpecContext) {
		policy := createPolicy(ctx, "unused", "pool=unused", ipvs)
		startController()
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("False NoNodeProxy: There is no NodeProxy"))
		switchOn(ctx)
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("True NothingSelected: No Linux node matches spec.nodeSelector"))
	})

	It("that are invalid change nothing", func(ctx SpecContext) {
		policy, names, controller := shaped(ctx, 2)
		before := versions(ctx)

		By("one that makes no sense by itself")
		bad := createPolicy(ctx, "bad", "a b=c", func(p *v1alpha1.NodeProxyPolicy) { p.Spec.Priority = new(int32(9)) }, ipvs)
		Eventually(policyReady(ctx, bad)).Should(SatisfyAll(HavePrefix("False InvalidPolicy: "), ContainSubstring("spec.nodeSelector.matchLabels[a b]")))
		Expect(policyCondition(ctx, bad, v1alpha1.ConditionAccepted)()).To(HavePrefix("False InvalidPolicy: "))
		Expect(policyCondition(ctx, bad, v1alpha1.ConditionStalled)()).To(HavePrefix("True InvalidPolicy: "))

		By("one that only others make invalid")
		createPolicy(ctx, "quick", "", func(p *v1alpha1.NodeProxyPolicy) {
			p.Spec.Settings.Sync = &v1alpha1.SyncSettings{MinIntervalMilliseconds: new(int32(90000))}
			p.Spec.Settings.Fallback = new(v1alpha1.FallbackIPTables)
		})
		Eventually(policyReady(ctx, &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "quick"}})).Should(
			SatisfyAll(HavePrefix("False InvalidResult: "), ContainSubstring("spec.settings.sync.verifyIntervalSeconds")))
		Eventually(policyReady(ctx, policy)).Should(SatisfyAll(HavePrefix("False NodesNotProgrammed: "), ContainSubstring("quick")))
		edit(ctx, policy, func() { policy.Spec.Settings.IPVS = &v1alpha1.IPVSSettings{Scheduler: new("sh")} })
		controller.looks(ctx, "rollout", "node", "service")
		Expect(versions(ctx)).To(Equal(before))

		By("a new node, whose pods need Services, so that it gets what comes of the others")
		createNode(ctx, "late", func(n *corev1.Node) { n.Labels["pool"] = "edge" })
		Eventually(nodeRules(ctx, "late")).Should(SatisfyAll(
			HaveField("Spec.Policies", Equal([]string{"edge"})), HaveField("Spec.Settings.IPVS.Scheduler", HaveValue(Equal("sh")))))
		Expect(scheduled(ctx, "sh")()).To(Equal([]string{"late"}))
		quick := &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "quick"}}
		Expect(k8s.Delete(ctx, quick)).To(Succeed())
		Eventually(scheduled(ctx, "sh")).Should(ContainElement(names[0]))
	})
})

// nodeNamed is a Node to be read.
func nodeNamed(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
