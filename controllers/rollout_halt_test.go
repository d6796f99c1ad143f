package controllers_test

import (
	"context"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var _ = Describe("a rollout", func() {
	// ipvs has a policy ask for mode IPVS, with a deadline of 100 s.
	ipvs := func(p *v1alpha1.NodeProxyPolicy) {
		p.Spec.Settings.Mode = new(v1alpha1.ModeIPVS)
		p.Spec.Rollout = &v1alpha1.RolloutSettings{ProgressDeadlineSeconds: new(int32(100))}
	}
	fails := func(rules *v1alpha1.NodeProxyRules) {
		setProgrammed(rules, metav1.ConditionFalse, v1alpha1.ReasonFailed, "the kernel lacks ip_vs")
	}
	// begun starts a controller and a rollout over three nodes, of which the first is
	// given the change and cannot do it.
	begun := func(ctx context.Context) (policy *v1alpha1.NodeProxyPolicy, controller *running) {
		GinkgoHelper()
		switchOn(ctx)
		controller = startController()
		createPool(ctx, "edge", "edge-1", "edge-2", "edge-3")
		echo(ctx, "edge-1", "edge-2", "edge-3")
		policy = createPolicy(ctx, "edge", "pool=edge", ipvs)
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(Equal([]string{"edge-1"}))
		reportAs(ctx, "edge-1", fails)
		return policy, controller
	}
	stopped := func(ctx context.Context, policy *v1alpha1.NodeProxyPolicy) {
		GinkgoHelper()
		letPass(ctx, 101*time.Second)
		Eventually(policyReady(ctx, policy)).Should(SatisfyAll(
			HavePrefix("False RolloutHalted: Node edge-1 did not apply its settings within 100 s of "),
			ContainSubstring(" (Failed: the kernel lacks ip_vs). Fix the node, change spec, or delete its Node; 2 other nodes are waiting.")))
	}

	It("is paused and continued by spec.rollout.paused", func(ctx SpecContext) {
		switchOn(ctx)
		controller := startController()
		createPool(ctx, "edge", "edge-1", "edge-2")
		echo(ctx, "edge-1", "edge-2")
		policy := createPolicy(ctx, "edge", "pool=edge", ipvs, func(p *v1alpha1.NodeProxyPolicy) { p.Spec.Rollout.Paused = new(true) })
		Eventually(policyReady(ctx, policy)).Should(Equal(
			"False Paused: The rollout is paused: 0 of 2 nodes done, 2 waiting. Set spec.rollout.paused to false to continue."))
		testClock.putForward(time.Hour)
		controller.looks(ctx, "rollout")
		Expect(inMode(ctx, v1alpha1.ModeIPVS)()).To(BeEmpty())
		edit(ctx, policy, func() { policy.Spec.Rollout.Paused = nil })
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(Equal([]string{"edge-1"}))
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("False Progressing")) // each state has its event
		edit(ctx, policy, func() { policy.Spec.Rollout.Paused = new(true) })
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("False Paused"))
		echo(ctx, "edge-1")
		testClock.putForward(time.Hour)
		controller.looks(ctx, "rollout")
		Expect(inMode(ctx, v1alpha1.ModeIPVS)()).To(Equal([]string{"edge-1"}))
		edit(ctx, policy, func() { policy.Spec.Rollout.Paused = new(false) })
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(HaveLen(2))
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("False Progressing"))
		echo(ctx, "edge-2")
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("True Applied"))
		Eventually(eventsAbout(ctx, policy)).Should(Equal([]string{
			"Normal Paused", "Normal Progressing", "Normal Paused", "Normal Progressing", "Normal Applied",
		}))
	})

	It("halts at a node that misses the deadline, and continues when it recovers", func(ctx SpecContext) {
		policy, controller := begun(ctx)
		Eventually(policyReady(ctx, policy)).Should(Equal(
			"False Progressing: 0 of 3 nodes done, 1 being updated (edge-1), 2 waiting; at most 1 may be unavailable."))
		stopped(ctx, policy)
		Eventually(policyCondition(ctx, policy, v1alpha1.ConditionStalled)).Should(HavePrefix("True RolloutHalted"))
		Eventually(examples(ctx, policy)).Should(SatisfyAll(HaveLen(3), HaveEach(HaveField("Name", HavePrefix("edge-"))),
			ContainElement(HaveField("Reason", v1alpha1.ReasonWaiting))))
		found, err := examples(ctx, policy)()
		Expect(err).NotTo(HaveOccurred())
		Expect(found[0]).To(SatisfyAll(HaveField("Name", "edge-1"), HaveField("Reason", v1alpha1.ReasonDeadlineMissed),
			HaveField("Message", HaveSuffix("Failed: the kernel lacks ip_vs"))))
		Expect(controller.metric("nodeproxy_controller_rollout_nodes")).To(BeNumerically(">", 0))
		spec := policy.Spec.DeepCopy()

		By("the node recovering")
		testClock.putForward(10 * time.Minute) // within which there is one event of a reason
		echo(ctx, "edge-1")
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(Equal([]string{"edge-1", "edge-2"}))
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("False Progressing"))
		echo(ctx, "edge-2")
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(HaveLen(3))
		echo(ctx, "edge-3")
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("True Applied"))
		Expect(policyCondition(ctx, policy, v1alpha1.ConditionStalled)()).To(BeEmpty())
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(policy), policy)).To(Succeed())
		Expect(policy.Spec).To(Equal(*spec), "no controller writes what users wrote")
		Eventually(eventsAbout(ctx, policy)).Should(Equal([]string{
			"Normal Progressing", "Warning RolloutHalted", "Normal Progressing", "Normal Applied",
		}))
	})

	It("halts, and a new generation fixes it, beginning with the node that has the bad change", func(ctx SpecContext) {
		policy, controller := begun(ctx)
		stopped(ctx, policy)
		testClock.putForward(time.Hour)
		controller.looks(ctx, "rollout")
		Expect(inMode(ctx, v1alpha1.ModeIPVS)()).To(Equal([]string{"edge-1"}))
		edit(ctx, policy, func() {
			policy.Spec.Settings.Mode, policy.Spec.Settings.Fallback = nil, new(v1alpha1.FallbackIPTables)
		})
		for _, name := range []string{"edge-1", "edge-2", "edge-3"} {
			Eventually(nodeRules(ctx, name)).Should(HaveField("Spec.Settings.Fallback", HaveValue(Equal(v1alpha1.FallbackIPTables))))
			echo(ctx, name)
		}
		Expect(inMode(ctx, v1alpha1.ModeIPVS)()).To(BeEmpty())
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("True Applied"))
	})

	It("that continues without a change of settings has its time again, and halts again", func(ctx SpecContext) {
		policy, _ := begun(ctx)
		stopped(ctx, policy)
		edit(ctx, policy, func() { policy.Spec.Priority = new(int32(7)) })
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("False Progressing"))
		stopped(ctx, policy)
		Expect(inMode(ctx, v1alpha1.ModeIPVS)()).To(Equal([]string{"edge-1"}))
	})

	It("that has halted continues when the Node is deleted", func(ctx SpecContext) {
		policy, _ := begun(ctx)
		stopped(ctx, policy)
		Expect(k8s.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge-1"}})).To(Succeed())
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(Equal([]string{"edge-1", "edge-2"}))
	})

	It("continues where it was after a restart", func(ctx SpecContext) {
		policy, controller := begun(ctx)
		Eventually(policyReady(ctx, policy)).Should(HavePrefix("False Progressing"))
		before := versions(ctx)
		controller.stop()
		controller = startController()
		controller.looks(ctx, "rollout", "node", "service")
		Expect(versions(ctx)).To(Equal(before))

		By("stopped")
		stopped(ctx, policy)
		before = versions(ctx)
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(policy), policy)).To(Succeed())
		controller.stop()
		controller = startController()
		controller.looks(ctx, "rollout", "node", "service")
		Expect(versions(ctx)).To(Equal(before))
		again := &v1alpha1.NodeProxyPolicy{}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(policy), again)).To(Succeed())
		Expect(again.ResourceVersion).To(Equal(policy.ResourceVersion))

		By("the node recovering while no controller runs")
		controller.stop()
		echo(ctx, "edge-1")
		controller = startController()
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(Equal([]string{"edge-1", "edge-2"}))
		controller.looks(ctx, "rollout")
		Expect(inMode(ctx, v1alpha1.ModeIPVS)()).To(HaveLen(2))
		Eventually(eventsAbout(ctx, policy)).Should(Equal([]string{"Normal Progressing", "Warning RolloutHalted", "Normal Progressing"}))
	})

	It("of NodeProxy halts, and its status reports it", func(ctx SpecContext) {
		np := switchOn(ctx)
		startController()
		createPool(ctx, "core", "core-1", "core-2")
		echo(ctx, "core-1", "core-2")
		edit(ctx, np, func() { np.Spec.Settings = &v1alpha1.WrittenSettings{Mode: new(v1alpha1.ModeIPVS)} })
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(Equal([]string{"core-1"}))
		Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("False Progressing: ")))
		reportAs(ctx, "core-1", fails)
		letPass(ctx, 11*time.Minute)
		Eventually(summary(ctx)).Should(WithTransform(ready, SatisfyAll(
			HavePrefix("False RolloutHalted: Node core-1 did not apply its settings within 600 s of "), ContainSubstring("(Failed: the kernel lacks ip_vs)"))))
		edit(ctx, np, func() {
			np.Spec.Rollout = &v1alpha1.RolloutSettings{Paused: new(true)}
		})
		echo(ctx, "core-1")
		Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("False Paused: ")))
		edit(ctx, np, func() { np.Spec.Rollout = nil })
		Eventually(inMode(ctx, v1alpha1.ModeIPVS)).Should(HaveLen(2))
		Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("False Progressing: ")))
		echo(ctx, "core-2")
		Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("True AllProgrammed")))
		Eventually(eventsAbout(ctx, np)).Should(Equal([]string{
			"Normal Progressing", "Warning RolloutHalted", "Normal Paused", "Normal Progressing", "Normal AllProgrammed",
		}))
	})
})
