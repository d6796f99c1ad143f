package controllers_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// A label that cannot be one gets past the rules of the API.
func cannotBe(s *v1alpha1.ServiceProxyPolicySpec) {
	s.NamespaceSelector.MatchLabels = map[string]string{"team": "sh op"}
}

var _ = Describe("A ServiceProxyPolicy that makes no sense", func() {
	It("changes nothing, and states what is wrong", func(ctx SpecContext) {
		ns := namespaceOf(ctx, "shop")
		switchOn(ctx)
		c := startController()
		createNodePort(ctx, ns, "cart")
		p := createServicePolicy(ctx, "p")
		Eventually(rulesOf(ctx, ns, "cart")).Should(haveShape("[p]: closed"))
		Eventually(servicePolicy(ctx, "p")).Should(haveCondition("Ready", "True Applied"))
		before := versions(ctx)

		changeServicePolicy(ctx, "p", cannotBe)
		Eventually(servicePolicy(ctx, "p")).Should(And(
			haveCondition("Ready", "False InvalidPolicy"), haveCondition("Accepted", "False InvalidPolicy"), haveCondition("Stalled", "True InvalidPolicy"),
			WithTransform(message("Accepted"), And(
				HavePrefix("This policy is not used, and the Services that it selects or has shaped retain their overrides. Correct spec.namespaceSelector.matchLabels[team]: "),
				ContainSubstring("sh op"))),
		))
		Eventually(policyEvents(ctx, p)).Should(ContainElement(HavePrefix("Warning InvalidPolicy: Generation 2: This policy is not used")))

		By("another policy for a Service that it has shaped")
		createServicePolicy(ctx, "other", func(s *v1alpha1.ServiceProxyPolicySpec) {
			s.Overrides = v1alpha1.ServiceOverrides{IPVSScheduler: new("sh")}
		})
		Eventually(servicePolicy(ctx, "other")).Should(And(haveCondition("Ready", "False Progressing"),
			WithTransform(message("Ready"), Equal("0 of 1 Service has the overrides of its policies; 1 retains its overrides because policy p is not valid."))))
		c.looks(ctx, "servicepolicy", "service")
		Expect(versions(ctx)).To(Equal(before))

		By("a restart")
		c.stop()
		c = startController()
		c.firstLooks("servicepolicy", "service")
		c.looks(ctx, "servicepolicy", "service")
		Expect(versions(ctx)).To(Equal(before))

		By("a new Service, of which it has shaped nothing")
		createNodePort(ctx, ns, "new")
		Eventually(rulesOf(ctx, ns, "new")).Should(haveShape("[other]: open"))

		By("correcting it")
		changeServicePolicy(ctx, "p", func(s *v1alpha1.ServiceProxyPolicySpec) {
			s.NamespaceSelector.MatchLabels = map[string]string{"team": "shop"}
		})
		Eventually(rulesOf(ctx, ns, "cart")).Should(haveShape("[other p]: closed"))
		Eventually(rulesOf(ctx, ns, "new")).Should(haveShape("[other p]: closed"))
		Eventually(servicePolicy(ctx, "p")).Should(And(haveCondition("Ready", "True Applied"), haveCondition("Accepted", "True Accepted"), haveCondition("Stalled", "none")))

		By("deleting one that makes no sense")
		changeServicePolicy(ctx, "p", cannotBe)
		Eventually(servicePolicy(ctx, "p")).Should(haveCondition("Ready", "False InvalidPolicy"))
		Expect(k8s.Delete(ctx, p)).To(Succeed())
		Eventually(rulesOf(ctx, ns, "cart")).Should(haveShape("[other]: open"))
	})

	It("leaves no Service open whose annotation was edited", func(ctx SpecContext) {
		ns := namespaceOf(ctx, "shop")
		switchOn(ctx)
		startController()
		createNodePort(ctx, ns, "cart")
		createServicePolicy(ctx, "p")
		Eventually(rulesOf(ctx, ns, "cart")).Should(haveShape("[p]: closed"))
		for _, text := range []string{"", "{", `{"overrides": {"nodePorts": "Perhaps"}}`, `{"overrides": {"nodePorts": "Enabled"}, "owners": {"nodePorts": "p"}}`} {
			rules, err := rulesOf(ctx, ns, "cart")()
			Expect(err).NotTo(HaveOccurred())
			edited := rules.DeepCopy()
			edited.Annotations[v1alpha1.AnnotationOverrides] = text
			Expect(k8s.Patch(ctx, edited, client.MergeFrom(rules))).To(Succeed())
			Eventually(rulesOf(ctx, ns, "cart")).Should(And(haveShape("[p]: closed"),
				HaveField("Annotations", HaveKeyWithValue(v1alpha1.AnnotationOverrides, ContainSubstring(`"nodePorts":"Disabled"`)))), text)
		}
	})
})
