package lifecycle

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	accepted   = "True Accepted"
	programmed = "True Programmed"
)

// format returns the versions of a Service's and of a node's rendered object; for
// Eventually.
func format(ctx context.Context, service string, n *node) func() ([2]int32, error) {
	return func() ([2]int32, error) {
		services, nodes := &v1alpha1.ServiceProxyRules{}, &v1alpha1.NodeProxyRules{}
		if err := api.Get(ctx, client.ObjectKey{Name: v1alpha1.ServiceProxyRulesName(namespace, service)}, services); err != nil {
			return [2]int32{}, err
		}
		err := api.Get(ctx, client.ObjectKey{Name: n.name}, nodes)
		return [2]int32{services.Spec.FormatVersion, nodes.Spec.FormatVersion}, err
	}
}

var _ = Describe("the format of rendered objects", func() {
	It("is one that the oldest agent knows, and no node stops being served", func(ctx SpecContext) {
		createService(ctx, "cart")
		switchOn(ctx, v1alpha1.RemovalRetain)
		startController(1, 2)
		a, b := startNode(ctx, "a", nil, 1, 2), startNode(ctx, "b", nil, 1, 2)
		for _, n := range []*node{a, b} {
			Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal(programmed))
		}
		Eventually(format(ctx, "cart", a)).Should(Equal([2]int32{2, 2}))
		Eventually(a.programmed("cart")).Should(BeTrue())

		By("a node joining whose agent is older")
		old := startNode(ctx, "old", nil, 1)
		Eventually(old.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal(programmed))
		Expect(old.condition(ctx, v1alpha1.ConditionAccepted)()).To(Equal(accepted))
		Eventually(old.programmed("cart")).Should(BeTrue())
		for _, n := range []*node{a, b, old} {
			Eventually(format(ctx, "cart", n)).Should(Equal([2]int32{1, 1}))
		}

		By("an agent that is gone, whose last report still counts")
		old.stop()
		createService(ctx, "pay")
		Eventually(a.programmed("pay")).Should(BeTrue())
		Expect(format(ctx, "pay", a)()).To(Equal([2]int32{1, 1}))

		By("its upgrade")
		old.start(1, 2)
		for _, n := range []*node{a, b, old} {
			Eventually(format(ctx, "pay", n)).Should(Equal([2]int32{2, 2}))
			Eventually(n.programmed("pay")).Should(BeTrue())
			Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal(programmed))
		}
	})
})

var _ = Describe("removal with Cleanup", func() {
	It("empties the nodes, then NodeProxy goes, and comes back to nodes that serve again", func(ctx SpecContext) {
		createService(ctx, "cart")
		switchOn(ctx, v1alpha1.RemovalCleanup)
		startController()
		nodes := []*node{startNode(ctx, "a", nil), startNode(ctx, "b", nil)}
		for _, n := range nodes {
			Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal(programmed))
			Eventually(n.programmed("cart")).Should(BeTrue())
		}
		np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
		Eventually(func() ([]string, error) {
			err := api.Get(ctx, client.ObjectKeyFromObject(np), np)
			return np.Finalizers, err
		}).Should(Equal([]string{v1alpha1.FinalizerCleanup}))
		Expect(api.Delete(ctx, np)).To(Succeed())
		Eventually(func() bool { return apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(np), np)) }).Should(BeTrue())
		for _, n := range nodes {
			Expect(n.programmed("cart")()).To(BeFalse())
			Expect(n.programmed("kubernetes")()).To(BeFalse())
		}
		var rules v1alpha1.NodeProxyRulesList
		var services v1alpha1.ServiceProxyRulesList
		Expect(api.List(ctx, &rules)).To(Succeed())
		Expect(api.List(ctx, &services)).To(Succeed())
		Expect(rules.Items).To(BeEmpty())
		Expect(services.Items).To(BeEmpty())

		By("an agent that is started again, which brings nothing back")
		nodes[0].stop()
		writes := nodes[0].kernel.Writes()
		before, err := reconciled("service")()
		Expect(err).NotTo(HaveOccurred())
		createService(ctx, "pay")
		Eventually(reconciled("service")).Should(BeNumerically(">", before))
		nodes[0].start()
		nodes[0].knowsNone("nodeproxies", "nodeproxyrules", "serviceproxyrules")
		nodes[0].decides()
		Expect(nodes[0].programmed("cart")()).To(BeFalse())
		Expect(nodes[0].kernel.Writes()).To(Equal(writes))

		switchOn(ctx, v1alpha1.RemovalRetain)
		for _, n := range nodes {
			Eventually(n.programmed("cart")).Should(BeTrue())
			Eventually(n.programmed("pay")).Should(BeTrue())
			Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal(programmed))
		}
	})
})

var _ = Describe("the startup taint", func() {
	It("goes when the agent serves the node, within seconds of it", func(ctx SpecContext) {
		createService(ctx, "cart")
		switchOn(ctx, v1alpha1.RemovalRetain)
		startController()
		theirs := corev1.Taint{Key: "example.com/theirs", Effect: corev1.TaintEffectNoSchedule}
		n := startNode(ctx, "a", []corev1.Taint{{Key: v1alpha1.TaintAgentNotReady, Effect: corev1.TaintEffectNoSchedule}, theirs})
		object := &corev1.Node{}
		Eventually(func() ([]corev1.Taint, error) {
			err := api.Get(ctx, client.ObjectKey{Name: n.name}, object)
			return object.Spec.Taints, err
		}).Should(And(ContainElement(theirs), Not(ContainElement(HaveField("Key", v1alpha1.TaintAgentNotReady)))))
		Expect(n.programmed("cart")()).To(BeTrue())
	})
})
