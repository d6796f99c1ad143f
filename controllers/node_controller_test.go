package controllers_test

import (
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	. "github.com/onsi/gomega/gstruct"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
)

const renders = "nodeproxy_controller_render_seconds"

var _ = Describe("NodeReconciler", func() {
	It("keeps no requests on a standby, nor do Services", func(ctx SpecContext) {
		createNode(ctx, "n1")
		standby := startController(func(o *controllers.Options) { o.Leadership = leader.NewGate(clock.RealClock{}) })
		standby.firstLooks("node", "service")
	})

	It("keeps one object for every Linux Node", func(ctx SpecContext) {
		switchOn(ctx)
		controller := startController()
		createNode(ctx, "n1", func(n *corev1.Node) {
			n.Labels[corev1.LabelTopologyZone] = "zone-a"
			n.Spec.PodCIDRs = []string{"10.244.1.0/24"}
			n.Status.Addresses = []corev1.NodeAddress{
				{Type: corev1.NodeExternalIP, Address: "203.0.113.5"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.21"},
			}
		})
		createNode(ctx, "win-label", func(n *corev1.Node) { n.Labels[corev1.LabelOSStable] = "windows" })
		createNode(ctx, "win-report", func(n *corev1.Node) { n.Labels = nil; n.Status.NodeInfo.OperatingSystem = "windows" })
		createNode(ctx, "plain", func(n *corev1.Node) { n.Labels = nil })
		Eventually(nodeRules(ctx, "n1")).Should(PointTo(MatchFields(IgnoreExtras, Fields{
			"ObjectMeta": MatchFields(IgnoreExtras, Fields{"OwnerReferences": BeEmpty()}),
			"Spec": MatchFields(IgnoreExtras, Fields{
				"FormatVersion":    BeEquivalentTo(v1alpha1.FormatVersion),
				"SettingsRevision": MatchRegexp("^[0-9a-f]{8}$"),
				"Settings":         Equal(*v1alpha1.CompleteSettings(nil)),
				"Node": Equal(v1alpha1.NodeFacts{
					Addresses: []string{"192.0.2.21", "203.0.113.5"}, PodCIDRs: []string{"10.244.1.0/24"}, Zone: "zone-a",
				}),
			}),
		})))
		Eventually(nodeRules(ctx, "plain")).ShouldNot(BeNil())
		controller.looks(ctx, "node")
		Expect(versions(ctx)).To(SatisfyAll(
			HaveKey("node n1"), HaveKey("node plain"), Not(HaveKey("node win-label")), Not(HaveKey("node win-report")),
		))
	})

	It("follows settings and draining, and reverts hand edits", func(ctx SpecContext) {
		np := switchOn(ctx)
		startController()
		node := createNode(ctx, "n1")
		Eventually(nodeRules(ctx, "n1")).ShouldNot(BeNil())
		rules, err := nodeRules(ctx, "n1")()
		Expect(err).NotTo(HaveOccurred())
		revision, uid := rules.Spec.SettingsRevision, rules.UID

		audit := v1alpha1.Audit
		np.Spec.Settings = &v1alpha1.WrittenSettings{Enforcement: &audit}
		np.ResourceVersion = ""
		Expect(k8s.Patch(ctx, np, client.Merge)).To(Succeed())
		Eventually(nodeRules(ctx, "n1")).Should(HaveField("Spec.Settings.Enforcement", HaveValue(Equal(v1alpha1.Audit))))
		rules, err = nodeRules(ctx, "n1")()
		Expect(err).NotTo(HaveOccurred())
		Expect(rules.Spec.SettingsRevision).NotTo(Equal(revision))

		Eventually(func() error {
			if err := k8s.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
				return err
			}
			node.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
			return k8s.Update(ctx, node)
		}).Should(Succeed())
		Eventually(nodeRules(ctx, "n1")).Should(HaveField("Spec.Node.Draining", BeTrue()))

		By("reverting an edit")
		rules, err = nodeRules(ctx, "n1")()
		Expect(err).NotTo(HaveOccurred())
		want := *rules.Spec.DeepCopy()
		enforce := v1alpha1.Enforce
		rules.Spec.Settings.Enforcement = &enforce
		rules.Spec.Node.Zone = "wrong"
		rules.Spec.LocalEndpoints = []v1alpha1.ServiceLocalEndpoints{{Namespace: "x", Name: "y"}}
		Expect(k8s.Update(ctx, rules)).To(Succeed())
		Eventually(nodeRules(ctx, "n1")).Should(SatisfyAll(HaveField("Spec", Equal(want)), HaveField("UID", uid)))

		By("restoring what was deleted")
		Expect(k8s.Delete(ctx, rules)).To(Succeed())
		Eventually(nodeRules(ctx, "n1")).Should(SatisfyAll(HaveField("Spec", Equal(want)), HaveField("UID", Not(Equal(uid)))))
	})

	It("renders only nodes whose local endpoints changed", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		controller := startController()
		for _, n := range []string{"n1", "n2", "n3"} {
			createNode(ctx, n)
		}
		createService(ctx, ns, "cart")
		slice := createSlice(ctx, ns, "cart", "cart-a", at("10.1.0.1", "n1"), at("10.1.0.2", "n2"), at("10.1.0.3", "n3"))
		for _, n := range []string{"n1", "n2", "n3"} {
			Eventually(nodeRules(ctx, n)).Should(WithTransform(localEndpoints, HaveLen(1)))
		}
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, HaveLen(3)))
		before := versions(ctx)

		By("an endpoint more on n1")
		setEndpoints(ctx, slice, append(slice.Endpoints, at("10.1.0.4", "n1"))...)
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(localEndpoints, ConsistOf(ns+"/cart 10.1.0.1:8080", ns+"/cart 10.1.0.4:8080")))
		controller.looks(ctx, "node")
		after := versions(ctx)
		Expect(after["node n2"]).To(Equal(before["node n2"]))
		Expect(after["node n3"]).To(Equal(before["node n3"]))
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, HaveLen(4)))

		By("a change of state, which is no change of local endpoints")
		before = versions(ctx)
		slice.Endpoints[1] = in(slice.Endpoints[1], false, true, true)
		setEndpoints(ctx, slice, slice.Endpoints...)
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, ContainElement("Terminating 10.1.0.2:8080")))
		controller.looks(ctx, "node")
		after = versions(ctx)
		for _, n := range []string{"n1", "n2", "n3"} {
			Expect(after["node "+n]).To(Equal(before["node "+n]))
		}

		By("heartbeats and agents' reports, which render nothing")
		controller.looks(ctx, "service", "node")
		count := controller.metric(renders)
		node := &corev1.Node{}
		Expect(k8s.Get(ctx, client.ObjectKey{Name: "n1"}, node)).To(Succeed())
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
		Expect(k8s.Status().Update(ctx, node)).To(Succeed())
		report(ctx, "n1", metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
		Eventually(summary(ctx)).Should(HaveField("Nodes.Programmed", BeEquivalentTo(1)))
		controller.looks(ctx, "service", "node", "rollout")
		Expect(controller.metric(renders)).To(Equal(count))
	})

	It("gives an address that is reused across nodes to the winner's node", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		startController()
		createNode(ctx, "n1")
		createNode(ctx, "n2")
		createService(ctx, ns, "cart")
		old := createSlice(ctx, ns, "cart", "cart-a", at("10.1.0.1", "n1"))
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(localEndpoints, HaveLen(1)))

		By("the old pod terminating while the new one has its address")
		setEndpoints(ctx, old, in(at("10.1.0.1", "n1"), false, true, true))
		young := createSlice(ctx, ns, "cart", "cart-b", at("10.1.0.1", "n2"))
		Eventually(nodeRules(ctx, "n2")).Should(WithTransform(localEndpoints, HaveLen(1)))
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(localEndpoints, BeEmpty()))
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, Equal([]string{"Ready 10.1.0.1:8080"})))

		By("the winner shifting by state alone")
		setEndpoints(ctx, young, in(at("10.1.0.1", "n2"), false, true, true))
		setEndpoints(ctx, old, at("10.1.0.1", "n1"))
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(localEndpoints, HaveLen(1)))
		Eventually(nodeRules(ctx, "n2")).Should(WithTransform(localEndpoints, BeEmpty()))

		By("the winner going")
		Expect(k8s.Delete(ctx, old)).To(Succeed())
		Eventually(nodeRules(ctx, "n2")).Should(WithTransform(localEndpoints, HaveLen(1)))
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(localEndpoints, BeEmpty()))

		By("a slice changing its Service")
		createService(ctx, ns, "other")
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(young), young)).To(Succeed())
		young.Labels["kubernetes.io/service-name"] = "other"
		Expect(k8s.Update(ctx, young)).To(Succeed())
		Eventually(nodeRules(ctx, "n2")).Should(WithTransform(localEndpoints, Equal([]string{ns + "/other 10.1.0.1:8080"})))
	})

	It("lets state and local endpoints go their own ways", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		startController()
		createNode(ctx, "n1")

		By("an endpoint that is not ready, of a Service that does not exist")
		createSlice(ctx, ns, "cart", "cart-a", in(at("10.1.0.1", "n1"), false, false, false), at("10.1.0.2", "late"))
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(localEndpoints, Equal([]string{ns + "/cart 10.1.0.1:8080"})))

		By("an endpoint on a Node without an object")
		createService(ctx, ns, "cart")
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, Equal([]string{"Ready 10.1.0.2:8080"})))
		_, err := nodeRules(ctx, "late")()
		Expect(apierrors.IsNotFound(err)).To(BeTrue())

		By("the Node coming later")
		createNode(ctx, "late")
		Eventually(nodeRules(ctx, "late")).Should(WithTransform(localEndpoints, Equal([]string{ns + "/cart 10.1.0.2:8080"})))
	})

	It("keeps the object of a Node that registers again, and removes it ten minutes after the Node", func(ctx SpecContext) {
		switchOn(ctx)
		controller := startController()
		node := createNode(ctx, "n1", func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "zone-a" })
		Eventually(nodeRules(ctx, "n1")).ShouldNot(BeNil())
		rules, err := nodeRules(ctx, "n1")()
		Expect(err).NotTo(HaveOccurred())
		uid := rules.UID

		drained := SatisfyAll(HaveField("Spec.Node", MatchFields(IgnoreExtras, Fields{
			"Draining": BeTrue(), "Zone": Equal("zone-a"), "Addresses": Equal([]string{"192.0.2.1"}),
		})), HaveField("Annotations", HaveKey(v1alpha1.AnnotationNodeAbsentSince)), HaveField("UID", uid))
		Expect(k8s.Delete(ctx, node)).To(Succeed())
		Eventually(nodeRules(ctx, "n1")).Should(drained)

		By("the Node registering again, with another UID")
		second := createNode(ctx, "n1", func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "zone-a" })
		Expect(second.UID).NotTo(Equal(node.UID))
		Eventually(nodeRules(ctx, "n1")).Should(SatisfyAll(
			HaveField("Spec.Node.Draining", BeFalse()), HaveField("UID", uid),
			HaveField("Annotations", Not(HaveKey(v1alpha1.AnnotationNodeAbsentSince))),
		))

		By("the Node going for good, the controller restarting in between")
		Expect(k8s.Delete(ctx, second)).To(Succeed())
		Eventually(nodeRules(ctx, "n1")).Should(drained)
		rules, err = nodeRules(ctx, "n1")()
		Expect(err).NotTo(HaveOccurred())
		since := rules.Annotations[v1alpha1.AnnotationNodeAbsentSince]
		controller.stop()
		testClock.putForward(9*time.Minute + 55*time.Second)
		startController().firstLooks("node")
		Expect(nodeRules(ctx, "n1")()).To(SatisfyAll(
			drained, HaveField("Annotations", HaveKeyWithValue(v1alpha1.AnnotationNodeAbsentSince, since))))
		Eventually(isGone(ctx, rules), "10s").Should(beGone)
	})

	It("renders nothing where nodeproxy was never switched on", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		controller := startController()
		createNode(ctx, "n1")
		createService(ctx, ns, "cart")
		createSlice(ctx, ns, "cart", "cart-a", at("10.1.0.1", "n1"))
		controller.looks(ctx, "service", "node")
		Expect(versions(ctx)).To(BeEmpty())
		Expect(controller.metric(renders)).To(BeZero())

		By("being switched on")
		switchOn(ctx)
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(localEndpoints, HaveLen(1)))
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, HaveLen(1)))
	})

	It("continues without NodeProxy, over a restart too", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		audit := v1alpha1.Audit
		np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
		np.Spec.Settings = &v1alpha1.WrittenSettings{Enforcement: &audit}
		Expect(k8s.Create(ctx, np)).To(Succeed())
		controller := startController()
		createNode(ctx, "n1")
		createService(ctx, ns, "cart")
		slice := createSlice(ctx, ns, "cart", "cart-a", at("10.1.0.1", "n1"))
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(localEndpoints, HaveLen(1)))
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, HaveLen(1)))
		rules, err := nodeRules(ctx, "n1")()
		Expect(err).NotTo(HaveOccurred())
		Expect(k8s.Delete(ctx, np)).To(Succeed())

		for i, moment := range []string{"running", "restarted"} {
			By("with the controller " + moment)
			setEndpoints(ctx, slice, append(slice.Endpoints, at(fmt.Sprintf("10.1.1.%d", i), "n1"))...)
			Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, HaveLen(2+i)))
			Eventually(nodeRules(ctx, "n1")).Should(SatisfyAll(
				WithTransform(localEndpoints, HaveLen(2+i)),
				HaveField("Spec.Settings", Equal(rules.Spec.Settings)),
				HaveField("Spec.SettingsRevision", Equal(rules.Spec.SettingsRevision)),
			))
			createService(ctx, ns, "new-"+moment)
			Eventually(rulesOf(ctx, ns, "new-"+moment)).ShouldNot(BeNil())
			createNode(ctx, "new-"+moment)
			controller.looks(ctx, "node")
			Expect(versions(ctx)).NotTo(HaveKey("node new-" + moment))
			controller.stop()
			controller = startController()
		}

		By("NodeProxy coming back")
		switchOn(ctx)
		Eventually(nodeRules(ctx, "new-running")).ShouldNot(BeNil())
		Eventually(nodeRules(ctx, "n1")).Should(HaveField("Spec.Settings.Enforcement", HaveValue(Equal(v1alpha1.Enforce))))
	})
})
