package controllers_test

import (
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var _ = Describe("RolloutReconciler", func() {
	It("gives a new node what policies make of its settings at once", func(ctx SpecContext) {
		switchOn(ctx)
		createPolicy(ctx, "edge", "pool=edge", func(p *v1alpha1.NodeProxyPolicy) { p.Spec.Settings.Mode = new(v1alpha1.ModeIPVS) })
		startController()
		createPool(ctx, "edge", "edge-1")
		createPool(ctx, "core", "core-1")
		Eventually(nodeRules(ctx, "edge-1")).Should(SatisfyAll(
			HaveField("Spec.Settings.Mode", HaveValue(Equal(v1alpha1.ModeIPVS))), HaveField("Spec.Policies", Equal([]string{"edge"})),
			HaveField("Annotations", HaveKey(v1alpha1.AnnotationRollout))))
		Eventually(nodeRules(ctx, "core-1")).Should(SatisfyAll(
			HaveField("Spec.Settings.Mode", HaveValue(Equal(v1alpha1.ModeIPTables))), HaveField("Spec.Policies", BeEmpty())))
	})

	It("goes from node to node when NodeProxy changes", func(ctx SpecContext) {
		np := switchOn(ctx)
		controller := startController()
		names := []string{"n1", "n2", "n3"}
		createPool(ctx, "core", names...)
		echo(ctx, names...)
		Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("True AllProgrammed")))

		edit(ctx, np, func() { np.Spec.Settings = &v1alpha1.WrittenSettings{Mode: new(v1alpha1.ModeIPVS)} })
		for i := range names {
			Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(Equal(names[:i+1]))
			controller.looks(ctx, "rollout")
			Expect(inMode(ctx, v1alpha1.ModeIPVS)()).To(HaveLen(i + 1))
			if i < 2 {
				Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("False Progressing: ")))
			}
			echo(ctx, names[i])
		}
		Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("True AllProgrammed")))
	})

	It("goes from node to node as a policy requires", func(ctx SpecContext) {
		switchOn(ctx)
		controller := startController()
		names := createMany(ctx, "edge", 10)
		createPool(ctx, "core", "core-1")
		echo(ctx, append(names, "core-1")...)
		policy := createPolicy(ctx, "edge", "pool=edge", func(p *v1alpha1.NodeProxyPolicy) {
			p.Spec.Settings.Mode = new(v1alpha1.ModeIPVS)
			p.Spec.Rollout = &v1alpha1.RolloutSettings{MaxUnavailable: percent("25%")}
		})
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(Equal(names[:2]))
		controller.looks(ctx, "rollout")
		Expect(inMode(ctx, v1alpha1.ModeIPVS)()).To(HaveLen(2))
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("False Progressing"))
		for len(names) > 0 {
			var given []string
			Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(ContainElement(names[0]))
			given, err := inMode(ctx, v1alpha1.ModeIPVS)()
			Expect(err).NotTo(HaveOccurred())
			echo(ctx, given...)
			names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(given, n) })
		}
		Eventually(policyReady(ctx, policy)).Should(Equal("True Applied: All 10 selected nodes have applied their settings."))
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(policy), policy)).To(Succeed())
		Expect(policy.Status).To(SatisfyAll(HaveField("Nodes", BeEquivalentTo(10)), HaveField("Updated", BeEquivalentTo(10)),
			HaveField("Programmed", BeEquivalentTo(10)), HaveField("ObservedGeneration", policy.Generation), HaveField("Examples", BeEmpty())))
		Expect(inMode(ctx, v1alpha1.ModeIPVS)()).To(HaveLen(10))
	})
})
