package apitest

import (
	"context"
	"errors"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// forCleanup gives the NodeProxy the policy Cleanup and the finalizer, as the
// controller does it.
func forCleanup(ctx context.Context) *v1alpha1.NodeProxy {
	GinkgoHelper()
	object := stored(ctx)
	object.Spec.RemovalPolicy = new(v1alpha1.RemovalCleanup)
	object.Finalizers = []string{v1alpha1.FinalizerCleanup}
	Expect(api.Update(ctx, object)).To(Succeed())
	DeferCleanup(func(ctx context.Context) { finish(ctx) })
	return object
}

// stored returns the NodeProxy as it is now.
func stored(ctx context.Context) *v1alpha1.NodeProxy {
	GinkgoHelper()
	object := &v1alpha1.NodeProxy{}
	Expect(api.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, object)).To(Succeed())
	return object
}

// finish takes the finalizer off, as the controller does it once nodes are clean.
func finish(ctx context.Context) {
	GinkgoHelper()
	object := &v1alpha1.NodeProxy{}
	if err := api.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, object); err != nil {
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		return
	}
	object.Finalizers = nil
	Expect(client.IgnoreNotFound(api.Update(ctx, object))).To(Succeed())
}

var _ = Describe("removal with the policy Cleanup", func() {
	It("removes the rules, stays so without the NodeProxy, and programs for the next", func(ctx SpecContext) {
		cart := service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.createRules(ctx, nil)
		proxy := forCleanup(ctx)
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))

		By("naming what keeps it from being removed, and trying again")
		n.kernel.Fail(errors.New("another process holds the lock"))
		Expect(api.Delete(ctx, proxy)).To(Succeed())
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("False/Failed"))
		Expect(n.message(ctx, v1alpha1.ConditionProgrammed)).To(And(ContainSubstring("removalPolicy Cleanup"), ContainSubstring("holds the lock"), ContainSubstring("retries")))
		n.kernel.Fail(nil)
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed), "40s").Should(Equal("False/Removed"))
		Expect(n.kernel.Services()).To(BeEmpty())
		Expect(n.rules(ctx).Status).To(SatisfyAll(HaveField("Services", BeZero()), HaveField("AppliedResourceVersion", BeEmpty()), HaveField("Families", BeEmpty())))
		Expect(n.condition(ctx, v1alpha1.ConditionAccepted)()).To(Equal("True/Accepted"))
		removed := n.message(ctx, v1alpha1.ConditionProgrammed)

		By("programming nothing any more, nor after a restart")
		pay := service(ctx, "pay", "10.96.0.8")
		n.knows(pay)
		n.decides(ctx)
		Expect(n.kernel.Services()).To(BeEmpty())
		n.stop()
		writes := n.kernel.Writes()
		n.start()
		n.knows(cart, pay, stored(ctx))
		n.decides(ctx)
		Expect(n.kernel.Services()).To(BeEmpty())
		Expect(n.condition(ctx, v1alpha1.ConditionProgrammed)()).To(Equal("False/Removed"))

		By("staying so once the NodeProxy is gone, and after a restart then")
		finish(ctx)
		n.knowsEnd(v1alpha1.NodeProxyName)
		n.decides(ctx)
		Expect(n.kernel.Services()).To(BeEmpty())
		n.stop()
		n.start()
		n.knows(cart, pay)
		n.knowsNone("nodeproxies")
		n.decides(ctx)
		Expect(n.kernel.Services()).To(BeEmpty())
		Expect(n.condition(ctx, v1alpha1.ConditionProgrammed)()).To(Equal("False/Removed"))
		Expect(n.message(ctx, v1alpha1.ConditionProgrammed)).To(Equal(removed))
		Expect(n.kernel.Writes()).To(Equal(writes), "nothing was written, not for a moment")

		By("programming again for a new NodeProxy, and only what is there by then")
		Expect(api.Delete(ctx, cart)).To(Succeed())
		inventory(ctx, "pay")
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		Expect(n.kernel.Services()).To(Equal([]string{"shop/pay"}))
		Expect(n.rules(ctx).Status.Services).To(BeEquivalentTo(1))
	})

	It("begins without what was rendered, after the node was cut off and saw nothing", func(ctx SpecContext) {
		cart := service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n, link := newNode(), &cable{}
		n.createRules(ctx, nil)
		proxy := forCleanup(ctx)
		n.startAt(clock.RealClock{}, link.config())
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		link.set(true)
		Eventually(n.logged).Should(ContainSubstring("Could not read from the API"))
		Expect(api.Delete(ctx, proxy)).To(Succeed())
		Expect(api.Delete(ctx, cart)).To(Succeed())
		link.set(false)
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed), "40s").Should(Equal("False/Removed"))
		Expect(n.kernel.Services()).To(BeEmpty())
		Expect(n.rules(ctx).Status.Retained).To(BeZero())
	})

	DescribeTable("touches nothing, and says so,", func(ctx SpecContext, prepare func(*node), edit func(*v1alpha1.NodeProxyRulesSpec), former, text string) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		prepare(n)
		n.createRules(ctx, edit)
		proxy := forCleanup(ctx)
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal(former))
		Expect(api.Delete(ctx, proxy)).To(Succeed())
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("False/Removed"))
		Expect(n.message(ctx, v1alpha1.ConditionProgrammed)).To(ContainSubstring(text))
		Expect(n.kernel.Writes()).To(BeZero())
		finish(ctx)
		inventory(ctx, "cart")
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal(former))
	},
		Entry("beside another proxy", func(n *node) { n.other.answer("ipvs") }, nil, "False/ConflictingProxy", `"ipvs"`),
		Entry("with Audit", func(*node) {}, func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Enforcement = new(v1alpha1.Audit) }, "False/AuditDiffers", "enforcement is Audit"),
	)

	It("keeps the rules where the policy is Retain", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.createRules(ctx, nil)
		proxy := forCleanup(ctx)
		proxy.Spec.RemovalPolicy = new(v1alpha1.RemovalRetain)
		Expect(api.Update(ctx, proxy)).To(Succeed())
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		Expect(api.Delete(ctx, proxy)).To(Succeed())
		n.knows(stored(ctx))
		n.looked(ctx)
		Expect(n.kernel.Services()).To(Equal([]string{"shop/cart"}))
		finish(ctx)
		n.knowsEnd(v1alpha1.NodeProxyName)
		n.looked(ctx)
		Expect(n.kernel.Services()).To(Equal([]string{"shop/cart"}))
		Expect(n.condition(ctx, v1alpha1.ConditionProgrammed)()).To(HavePrefix("True/"))
	})
})
