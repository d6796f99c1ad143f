package apitest

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var _ = Describe("an agent that is older than the controller", func() {
	It("follows the controller to a newer format, each object as it comes", func(ctx SpecContext) {
		cart, pay := service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080"), service(ctx, "pay", "10.96.0.8")
		inventory(ctx, "cart", "pay")
		newer := func(s *v1alpha1.ServiceProxyRules, clusterIP string) {
			s.Spec.FormatVersion, s.Spec.ClusterIPs = 2, []string{clusterIP}
			Expect(api.Update(ctx, s)).To(Succeed())
		}
		old, both := newNode(), newNode()
		old.formats = []int32{1}
		both.formats = []int32{2, 1}
		for _, n := range []*node{old, both} {
			n.createRules(ctx, nil)
			n.start()
			Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		}
		Expect(old.rules(ctx).Status.Agent.FormatVersions).To(Equal([]int32{1}))
		Expect(both.rules(ctx).Status.Agent.FormatVersions).To(Equal([]int32{1, 2}))

		By("changing nothing of what is in the newer one, and going on with all else")
		newer(cart, "10.96.0.99")
		Eventually(old.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/SomeServicesRejected"))
		Expect(old.rules(ctx).Status.Rejected.Examples).To(ConsistOf(
			"shop/cart: spec.formatVersion 2 is not known to this agent, which knows 1: upgrade the agents; its rules stay as they are"))
		Expect(old.condition(ctx, v1alpha1.ConditionAccepted)()).To(Equal("True/Accepted"))
		pay.Spec.ClusterIPs = []string{"10.96.0.88"}
		Expect(api.Update(ctx, pay)).To(Succeed())
		clusterIPs := func(n *node) func() string {
			return func() string {
				return n.kernel.Service("shop", "cart").ClusterIP.String() + " " + n.kernel.Service("shop", "pay").ClusterIP.String()
			}
		}
		Eventually(clusterIPs(old)).Should(Equal("10.96.0.7 10.96.0.88"))
		Eventually(clusterIPs(both)).Should(Equal("10.96.0.99 10.96.0.88"))

		By("leaving all rules once the node's own object is in the newer one")
		for _, n := range []*node{old, both} {
			n.editRules(ctx, func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 2 })
		}
		Eventually(old.condition(ctx, v1alpha1.ConditionAccepted)).Should(Equal("False/UnknownFormat"))
		Expect(old.message(ctx, v1alpha1.ConditionAccepted)).To(ContainSubstring("spec.formatVersion 2 is not known to this agent, which knows 1: upgrade the agents"))
		newer(pay, "10.96.0.77")
		Eventually(clusterIPs(both)).Should(Equal("10.96.0.99 10.96.0.77"))
		Expect(both.condition(ctx, v1alpha1.ConditionAccepted)()).To(Equal("True/Accepted"))
		old.knows(pay)
		old.observed(ctx)
		Expect(clusterIPs(old)()).To(Equal("10.96.0.7 10.96.0.88"))

		By("taking up all of it once the agent is upgraded")
		old.stop()
		old.formats = both.formats
		old.start()
		Eventually(clusterIPs(old)).Should(Equal("10.96.0.99 10.96.0.77"))
		Eventually(old.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
	})
})
