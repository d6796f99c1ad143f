package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// patchNodeProxy changes the NodeProxy as a person would.
func patchNodeProxy(ctx context.Context, patch string) {
	GinkgoHelper()
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	Expect(k8s.Patch(ctx, np, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
}

const (
	cleanup = `{"spec":{"removalPolicy":"Cleanup"}}`
	retain  = `{"spec":{"removalPolicy":"Retain"}}`
)

// deleteNodeProxy deletes the NodeProxy, without waiting until it is gone.
func deleteNodeProxy(ctx context.Context) {
	GinkgoHelper()
	Expect(k8s.Delete(ctx, &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}})).To(Succeed())
}

// finalizers reads those of the NodeProxy; for Eventually.
func finalizers(ctx context.Context) func() ([]string, error) {
	return func() ([]string, error) {
		np := &v1alpha1.NodeProxy{}
		err := k8s.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np)
		return np.Finalizers, err
	}
}

// nodeProxyGone reports whether there is no NodeProxy; for Eventually.
func nodeProxyGone(ctx context.Context) func() (bool, error) {
	return func() (bool, error) {
		err := k8s.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, &v1alpha1.NodeProxy{})
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
}

// createAgents creates a DaemonSet such as the controller's.
func createAgents(ctx context.Context, name string) {
	GinkgoHelper()
	labels := map[string]string{"app.kubernetes.io/name": name}
	agents := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "agent", Image: "agent"}}},
			},
		},
	}
	Expect(k8s.Create(ctx, agents)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(k8s.Delete(ctx, agents))).To(Succeed()) })
}

// hasAgents reports whether a DaemonSet is there and not being deleted.
func hasAgents(ctx context.Context, name string) bool {
	GinkgoHelper()
	agents := &appsv1.DaemonSet{}
	err := k8s.Get(ctx, client.ObjectKey{Namespace: leaseNamespace, Name: name}, agents)
	Expect(client.IgnoreNotFound(err)).To(Succeed())
	return err == nil && agents.DeletionTimestamp == nil
}

// notCleaned returns what the last event reports of nodes that may have rules still.
func notCleaned(ctx context.Context) string {
	GinkgoHelper()
	return lastWarning(ctx, "NodesNotCleaned")
}

// lastWarning returns what the last event about NodeProxy with a reason reports.
func lastWarning(ctx context.Context, reason string) string {
	GinkgoHelper()
	var reported eventsv1.EventList
	Expect(k8s.List(ctx, &reported, client.InNamespace("default"))).To(Succeed())
	reported.Items = slices.DeleteFunc(reported.Items, func(e eventsv1.Event) bool { return e.Reason != reason })
	if len(reported.Items) == 0 {
		return ""
	}
	last := slices.MaxFunc(reported.Items, func(a, b eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	Expect(last.Regarding.Name).To(Equal("cluster"))
	return last.Note
}

// removalUnderWay begins a removal with Cleanup, for which the node n1 is waited
// for, and returns a namespace with two Services: cart, rendered before, and late,
// made since and not rendered.
func removalUnderWay(ctx context.Context) (namespace string) {
	GinkgoHelper()
	ns := newNamespace(ctx)
	createService(ctx, ns, "cart")
	createNode(ctx, "n1")
	switchOn(ctx)
	patchNodeProxy(ctx, cleanup)
	controller := startController()
	Eventually(rulesOf(ctx, ns, "cart")).ShouldNot(BeNil())
	Eventually(nodeRules(ctx, "n1")).ShouldNot(BeNil())
	Eventually(finalizers(ctx)).ShouldNot(BeEmpty())
	deleteNodeProxy(ctx)
	Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("False Removing")))
	createService(ctx, ns, "late")
	controller.looks(ctx, "service")
	_, err := rulesOf(ctx, ns, "late")()
	Expect(err).To(WithTransform(apierrors.IsNotFound, BeTrue()))
	return ns
}

var _ = Describe("removing NodeProxy", func() {
	// A spec that fails in the middle leaves a NodeProxy with its finalizer.
	BeforeEach(func() {
		DeferCleanup(func(ctx SpecContext) {
			np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
			none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
			Expect(client.IgnoreNotFound(k8s.Patch(ctx, np, none))).To(Succeed())
		})
	})

	It("has a finalizer while the policy is Cleanup, beside those of others", func(ctx SpecContext) {
		np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName, Finalizers: []string{"example.com/theirs"}}}
		Expect(k8s.Create(ctx, np)).To(Succeed())
		startController()
		Eventually(summary(ctx)).Should(HaveField("Conditions", Not(BeEmpty())))
		Expect(finalizers(ctx)()).To(Equal([]string{"example.com/theirs"}))
		patchNodeProxy(ctx, cleanup)
		Eventually(finalizers(ctx)).Should(Equal([]string{"example.com/theirs", v1alpha1.FinalizerCleanup}))

		By("a user replacing the object by one without finalizers")
		patchNodeProxy(ctx, `{"metadata":{"finalizers":null}}`)
		Eventually(finalizers(ctx)).Should(Equal([]string{v1alpha1.FinalizerCleanup}))
		patchNodeProxy(ctx, retain)
		Eventually(finalizers(ctx)).Should(BeEmpty())
	})

	It("applies beside users who apply the object, and each keeps their fields", func(ctx SpecContext) {
		apply := func(spec string) {
			np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
			manifest := fmt.Sprintf(`{"apiVersion":"nodeproxy.io/v1alpha1","kind":"NodeProxy","metadata":{"name":"cluster"},"spec":%s}`, spec)
			Expect(k8s.Patch(ctx, np, client.RawPatch(types.ApplyPatchType, []byte(manifest)), client.FieldOwner("gitops"))).To(Succeed())
		}
		apply(`{"removalPolicy":"Cleanup"}`)
		startController()
		Eventually(finalizers(ctx)).Should(Equal([]string{v1alpha1.FinalizerCleanup}))
		apply(`{"removalPolicy":"Cleanup","settings":{"enforcement":"Audit"}}`)
		Expect(finalizers(ctx)()).To(Equal([]string{v1alpha1.FinalizerCleanup}))
		apply(`{"settings":{"enforcement":"Audit"}}`) // Retain, as it is the default
		Eventually(finalizers(ctx)).Should(BeEmpty())
	})

	It("waits for the nodes, then deletes all of it, and goes last", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		createService(ctx, ns, "cart")
		switchOn(ctx)
		patchNodeProxy(ctx, `{"spec":{"removalPolicy":"Cleanup","agent":{"management":"Managed"}}}`)
		createNode(ctx, "n1")
		createNode(ctx, "n2")
		createNode(ctx, "silent")
		createAgents(ctx, "nodeproxy-agent")
		createAgents(ctx, "another")
		controller := startController()
		Eventually(rulesOf(ctx, ns, "cart")).ShouldNot(BeNil())
		Eventually(finalizers(ctx)).ShouldNot(BeEmpty())
		createNode(ctx, "never")
		reportFormats(ctx, "silent", 1) // an agent has worked there
		for _, node := range []string{"silent", "never"} {
			report(ctx, node, metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, "no heartbeat")
		}
		report(ctx, "n1", metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
		report(ctx, "n2", metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
		deleteNodeProxy(ctx)
		Eventually(summary(ctx)).Should(WithTransform(ready, SatisfyAll(
			HavePrefix("False Removing: 0 of 2 nodes have removed their rules. Waiting until "), HaveSuffix(" at the latest for n1, n2."))))

		By("nothing being rendered meanwhile")
		createService(ctx, ns, "late")
		createNode(ctx, "late")
		Expect(k8s.Delete(ctx, &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: ns + ".cart"}})).To(Succeed())

		By("one node after the other, and another controller in between")
		report(ctx, "n1", metav1.ConditionFalse, v1alpha1.ReasonRemoved, "cleaned up")
		report(ctx, "n2", metav1.ConditionFalse, v1alpha1.ReasonFailed, "iptables-restore is missing")
		Eventually(summary(ctx)).Should(WithTransform(ready, SatisfyAll(
			HavePrefix("False Removing: 1 of 2 nodes have removed their rules. Waiting until "), HaveSuffix(" at the latest for n2 (iptables-restore is missing)."))))
		controller.stop()
		controller = startController()
		controller.firstLooks("removal", "service", "node")
		controller.looksAt(ctx, "removal", func() { touchReport(ctx, "n1") }, "/cluster")
		Expect(nodeProxyGone(ctx)()).To(BeFalse())
		Expect(hasAgents(ctx, "nodeproxy-agent")).To(BeTrue())
		for _, name := range []string{"cart", "late"} {
			_, err := rulesOf(ctx, ns, name)()
			Expect(apierrors.IsNotFound(err)).To(BeTrue(), name)
		}
		report(ctx, "n2", metav1.ConditionFalse, v1alpha1.ReasonRemoved, "cleaned up")
		Eventually(nodeProxyGone(ctx)).Should(BeTrue())
		Expect(versions(ctx)).To(BeEmpty())
		Expect(hasAgents(ctx, "nodeproxy-agent")).To(BeFalse())
		Expect(hasAgents(ctx, "another")).To(BeTrue())
		Expect(notCleaned(ctx)).To(HaveSuffix("rules may be left on silent, where the agent does not respond. Run `nodeproxy-agent cleanup` there (docs/removal.md)."))

		By("it staying so, until NodeProxy is created again")
		createService(ctx, ns, "later")
		controller.looks(ctx, "service", "node")
		Expect(versions(ctx)).To(BeEmpty())
		switchOn(ctx)
		for _, name := range []string{"cart", "late", "later"} {
			Eventually(rulesOf(ctx, ns, name)).ShouldNot(BeNil())
		}
		Eventually(nodeRules(ctx, "late")).ShouldNot(BeNil())
	})

	It("waits for five minutes at the longest, and names who is left", func(ctx SpecContext) {
		switchOn(ctx)
		patchNodeProxy(ctx, cleanup)
		for i := range 12 {
			createNode(ctx, fmt.Sprintf("n%02d", i))
		}
		createAgents(ctx, "nodeproxy-agent")
		controller := startController()
		Eventually(finalizers(ctx)).ShouldNot(BeEmpty())
		Eventually(func() map[string]string { return versions(ctx) }).Should(HaveLen(13), "the nodes, and the Service kubernetes")
		report(ctx, "n03", metav1.ConditionFalse, v1alpha1.ReasonRemoved, "cleaned up")
		deleteNodeProxy(ctx)
		testClock.putForward(4*time.Minute + 30*time.Second)
		controller.stop()
		controller = startController()
		controller.firstLooks("removal")
		Expect(nodeProxyGone(ctx)()).To(BeFalse())
		testClock.putForward(31 * time.Second)
		controller.stop()
		startController()
		Eventually(nodeProxyGone(ctx)).Should(BeTrue())
		Expect(versions(ctx)).To(BeEmpty())
		Expect(hasAgents(ctx, "nodeproxy-agent")).To(BeTrue(), "agents that are run by hand stay")
		Expect(notCleaned(ctx)).To(ContainSubstring("rules may be left on n00, n01, n02, n04, n05, n06, n07, n08, n09, n10 and 1 more"))
	})

	It("is canceled when the policy becomes Retain again, and rendered objects stay", func(ctx SpecContext) {
		ns := removalUnderWay(ctx)
		patchNodeProxy(ctx, retain)
		Eventually(nodeProxyGone(ctx)).Should(BeTrue())
		Eventually(rulesOf(ctx, ns, "late")).ShouldNot(BeNil())
		Expect(rulesOf(ctx, ns, "cart")()).NotTo(BeNil())
		Expect(nodeRules(ctx, "n1")()).NotTo(BeNil())
	})

	It("continues when a user removes the finalizer", func(ctx SpecContext) {
		ns := removalUnderWay(ctx)
		patchNodeProxy(ctx, `{"metadata":{"finalizers":null}}`)
		Eventually(nodeProxyGone(ctx)).Should(BeTrue())
		Eventually(rulesOf(ctx, ns, "late")).ShouldNot(BeNil())
	})

	It("keeps everything with Retain", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		createService(ctx, ns, "cart")
		switchOn(ctx)
		patchNodeProxy(ctx, `{"spec":{"removalPolicy":"Retain","agent":{"management":"Managed"}}}`)
		createNode(ctx, "n1")
		createAgents(ctx, "nodeproxy-agent")
		controller := startController()
		Eventually(rulesOf(ctx, ns, "cart")).ShouldNot(BeNil())
		Eventually(nodeRules(ctx, "n1")).ShouldNot(BeNil())
		before := versions(ctx)
		deleteNodeProxy(ctx)
		Expect(nodeProxyGone(ctx)()).To(BeTrue())
		controller.looks(ctx, "service", "node", "rollout", "agents")
		Expect(versions(ctx)).To(Equal(before))
		controller.looksAt(ctx, "removal", func() { touchReport(ctx, "n1") }, "/cluster")
		after := versions(ctx)
		Expect(after).To(HaveKey("node n1")) // in another version, as it was reported
		delete(before, "node n1")
		delete(after, "node n1")
		Expect(after).To(Equal(before))
		Expect(hasAgents(ctx, "nodeproxy-agent")).To(BeTrue())
	})
})
