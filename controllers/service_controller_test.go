package controllers_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	. "github.com/onsi/gomega/gstruct"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var beGone = WithTransform(apierrors.IsNotFound, BeTrue())

// isGone reads an object and returns the error; for Eventually.
func isGone(ctx context.Context, o client.Object) func() error {
	return func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(o), o) }
}

// seen records what a watcher of ServiceProxyRules sees.
func seen(ctx context.Context) func() []string {
	GinkgoHelper()
	w, err := k8s.Watch(ctx, &v1alpha1.ServiceProxyRulesList{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(w.Stop)
	var log []string
	return func() []string {
		for {
			select {
			case e := <-w.ResultChan():
				if rules, ok := e.Object.(*v1alpha1.ServiceProxyRules); ok && e.Type != watch.Bookmark {
					log = append(log, fmt.Sprintf("%s %s released=%v", e.Type, rules.Name, rules.Spec.Released))
				}
			default:
				return log
			}
		}
	}
}

var _ = Describe("ServiceReconciler", func() {
	It("creates, updates and deletes the rules of a Service", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		startController()
		svc := createService(ctx, ns, "cart")
		Eventually(rulesOf(ctx, ns, "cart")).Should(PointTo(MatchFields(IgnoreExtras, Fields{
			"Spec": MatchFields(IgnoreExtras, Fields{
				"FormatVersion": BeEquivalentTo(v1alpha1.FormatVersion),
				"ClusterIPs":    Equal([]string{svc.Spec.ClusterIP}),
				"PortSummary":   Equal("80/TCP"),
				"Released":      BeFalse(),
			}),
		})))

		By("merging a controller's slice and a user's, with several states")
		slice := createSlice(ctx, ns, "cart", "cart-a", at("10.1.0.1", "n1"), in(at("10.1.0.2", "n1"), false, true, true))
		createSlice(ctx, ns, "cart", "by-hand", at("10.1.0.3", ""), in(at("10.1.0.4", "n2"), false, false, false))
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, Equal([]string{
			"Ready 10.1.0.1:8080", "Ready 10.1.0.3:8080", "Terminating 10.1.0.2:8080",
		})))

		By("following a slice and the Service")
		setEndpoints(ctx, slice, at("10.1.0.9", "n1"))
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, ConsistOf("Ready 10.1.0.9:8080", "Ready 10.1.0.3:8080")))
		svc.Spec.Type = corev1.ServiceTypeNodePort
		svc.Spec.ExternalIPs = []string{"198.51.100.7"}
		Expect(k8s.Update(ctx, svc)).To(Succeed())
		Eventually(rulesOf(ctx, ns, "cart")).Should(HaveField("Spec", MatchFields(IgnoreExtras, Fields{
			"ExternalIPs": Equal([]string{"198.51.100.7"}),
			"PortSummary": Equal(fmt.Sprintf("80:%d/TCP", svc.Spec.Ports[0].NodePort)),
		})))
		written, err := rulesOf(ctx, ns, "cart")()
		Expect(err).NotTo(HaveOccurred())
		Expect(writtenOf(ctx, written).Managers).To(BeEmpty(), "each node would receive managedFields")

		By("deleting with the Service")
		Expect(k8s.Delete(ctx, svc)).To(Succeed())
		rules := &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: ns + ".cart"}}
		Eventually(isGone(ctx, rules)).Should(beGone)
	})

	It("marks rules as released before it deletes them", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		startController()
		svc := createService(ctx, ns, "cart")
		other := createService(ctx, ns, "other")
		Eventually(rulesOf(ctx, ns, "cart")).ShouldNot(BeNil())
		Eventually(rulesOf(ctx, ns, "other")).ShouldNot(BeNil())
		saw := seen(ctx)
		Expect(k8s.Delete(ctx, svc)).To(Succeed())
		Eventually(saw).Should(ContainElements(
			"MODIFIED "+ns+".cart released=true",
			"DELETED "+ns+".cart released=true",
		))

		By("ending rules of a Service that another proxy takes over, though it lives on")
		other.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""}
		Expect(k8s.Update(ctx, other)).To(Succeed())
		Eventually(saw).Should(ContainElements(
			"MODIFIED "+ns+".other released=true",
			"DELETED "+ns+".other released=true",
		))

		By("taking it back")
		other.Labels = nil
		Expect(k8s.Update(ctx, other)).To(Succeed())
		Eventually(rulesOf(ctx, ns, "other")).Should(HaveField("Spec.Released", BeFalse()))
	})

	It("leaves out what is not proxied", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		controller := startController()
		createService(ctx, ns, "headless", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone })
		createService(ctx, ns, "name", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName, s.Spec.Ports = corev1.ServiceTypeExternalName, "example.org", nil
		})
		createService(ctx, ns, "labelled", func(s *corev1.Service) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
		})
		createService(ctx, ns, "last")
		Eventually(rulesOf(ctx, ns, "last")).ShouldNot(BeNil())
		controller.looks(ctx, "service")
		Expect(versions(ctx)).To(MatchAllKeys(Keys{
			"service " + ns + ".last":    Ignore(),
			"service default.kubernetes": Ignore(),
		}))
	})

	It("restores what is deleted and reverts what is edited by hand", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		startController()
		createService(ctx, ns, "cart")
		createSlice(ctx, ns, "cart", "cart-a", at("10.1.0.1", "n1"))
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, HaveLen(1)))
		rules, err := rulesOf(ctx, ns, "cart")()
		Expect(err).NotTo(HaveOccurred())
		want := rules.Spec

		saw := seen(ctx)
		Expect(k8s.Delete(ctx, rules)).To(Succeed())
		Eventually(saw).Should(ContainElements("DELETED "+ns+".cart released=false", "ADDED "+ns+".cart released=false"))

		Eventually(func(g Gomega) {
			rules, err = rulesOf(ctx, ns, "cart")()
			g.Expect(err).NotTo(HaveOccurred())
			rules.Labels = map[string]string{"mine": "stays"}
			rules.Spec.ClusterIPs = []string{"192.0.2.66"}
			rules.Spec.Policies = []string{"none"}
			rules.Spec.Ports = nil
			rules.Spec.Released = true
			g.Expect(k8s.Update(ctx, rules)).To(Succeed())
		}).Should(Succeed())
		Eventually(rulesOf(ctx, ns, "cart")).Should(PointTo(MatchFields(IgnoreExtras, Fields{
			"Spec":       Equal(want),
			"ObjectMeta": MatchFields(IgnoreExtras, Fields{"Labels": Equal(map[string]string{"mine": "stays"})}),
		})))
	})

	It("only creates when all rules were deleted while it was stopped", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		first := startController()
		for i := range 5 {
			createService(ctx, ns, fmt.Sprintf("s%d", i))
			Eventually(rulesOf(ctx, ns, fmt.Sprintf("s%d", i))).ShouldNot(BeNil())
		}
		first.stop()
		Expect(k8s.DeleteAllOf(ctx, &v1alpha1.ServiceProxyRules{})).To(Succeed())
		saw := seen(ctx)
		second := startController()
		var created []string
		for i := range 5 {
			created = append(created, fmt.Sprintf("ADDED %s.s%d released=false", ns, i))
		}
		created = append(created, "ADDED default.kubernetes released=false")
		Eventually(saw).Should(ConsistOf(created))
		second.looks(ctx, "service")
		rules, err := rulesOf(ctx, "default", "kubernetes")()
		Expect(err).NotTo(HaveOccurred())
		edit(ctx, rules, func() { rules.Labels = map[string]string{"mine": "last"} }) // what the watch brings last
		Eventually(saw).Should(ContainElement("MODIFIED default.kubernetes released=false"))
		Expect(saw()).To(ConsistOf(append(created, "MODIFIED default.kubernetes released=false")))
		Eventually(summary(ctx)).Should(HaveField("Inventory.Services", BeEquivalentTo(6)))
	})

	It("catches up with what ended or returned while it was stopped", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		first := startController()
		ended := createService(ctx, ns, "ended")
		createService(ctx, ns, "back")
		Eventually(rulesOf(ctx, ns, "ended")).ShouldNot(BeNil())
		Eventually(rulesOf(ctx, ns, "back")).ShouldNot(BeNil())
		first.stop()
		Expect(k8s.Delete(ctx, ended)).To(Succeed())
		back, err := rulesOf(ctx, ns, "back")()
		Expect(err).NotTo(HaveOccurred())
		back.Spec.Released = true // as a controller leaves it that dies between release and deletion
		Expect(k8s.Update(ctx, back)).To(Succeed())
		stray := &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "stray"}, Spec: v1alpha1.ServiceProxyRulesSpec{FormatVersion: 1}}
		Expect(k8s.Create(ctx, stray)).To(Succeed())

		saw := seen(ctx)
		startController()
		Eventually(saw).Should(ContainElements(
			"MODIFIED "+ns+".ended released=true", "DELETED "+ns+".ended released=true",
			"MODIFIED "+ns+".back released=false",
			"MODIFIED stray released=true", "DELETED stray released=true",
		))
		Expect(saw()).NotTo(ContainElement(HavePrefix("DELETED " + ns + ".back")))
	})

	It("writes nothing when bytes are equal, over a restart too", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		createNode(ctx, "n1")
		first := startController()
		createService(ctx, ns, "cart", func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.LoadBalancerSourceRanges = []string{" 198.51.100.0/24"}
		})
		slice := createSlice(ctx, ns, "cart", "cart-a", at("10.1.0.1", "n1"))
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, HaveLen(1)))
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(localEndpoints, HaveLen(1)))
		Eventually(summary(ctx)).Should(SatisfyAll(HaveField("Inventory.Services", BeEquivalentTo(2)), HaveField("Nodes.Total", BeEquivalentTo(1))))
		before := versions(ctx)

		By("a change time that differs alone")
		skipped := first.metric("nodeproxy_controller_skipped_writes_total")
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-11-20T06:00:00Z"}
		Expect(k8s.Update(ctx, slice)).To(Succeed())
		Eventually(func() float64 { return first.metric("nodeproxy_controller_skipped_writes_total") }).Should(BeNumerically(">", skipped))
		first.looks(ctx, "service", "node")
		Expect(versions(ctx)).To(Equal(before))

		By("a restart")
		first.stop()
		np := &v1alpha1.NodeProxy{}
		Expect(k8s.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np)).To(Succeed())
		second := startController()
		Eventually(func() float64 { return second.metric("nodeproxy_controller_skipped_writes_total") }).Should(BeNumerically(">=", 3))
		second.looks(ctx, "service", "node", "rollout", "nodeproxy", "servicepolicy")
		second.looks(ctx, "nodeproxy") // knows by now that nothing is rejected
		Expect(versions(ctx)).To(Equal(before))
		Expect(second.metric("nodeproxy_controller_writes_total")).To(BeZero())
		after := &v1alpha1.NodeProxy{}
		Expect(k8s.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, after)).To(Succeed())
		Expect(after.ResourceVersion).To(Equal(np.ResourceVersion))

		By("the change time going along with a change")
		setEndpoints(ctx, slice, at("10.1.0.2", "n1"))
		Eventually(rulesOf(ctx, ns, "cart")).Should(HaveField("Annotations",
			HaveKeyWithValue(v1alpha1.AnnotationLastChangeTriggerTime, "2026-11-20T06:00:00Z")))
	})

	It("coalesces the writes of a large Service, the first at once", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		createService(ctx, ns, "large")
		slice := createSlice(ctx, ns, "large", "large-a")
		for i := range 501 {
			slice.Endpoints = append(slice.Endpoints, at(fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), ""))
		}
		setEndpoints(ctx, slice, slice.Endpoints...)
		startController()
		Eventually(rulesOf(ctx, ns, "large")).Should(HaveField("Spec.EndpointCount", BeEquivalentTo(501)))
		rules, err := rulesOf(ctx, ns, "large")()
		Expect(err).NotTo(HaveOccurred())
		testClock.putForward(time.Minute) // a quiet minute later
		start := time.Now()
		for i := range 20 {
			setEndpoints(ctx, slice, append(slice.Endpoints, at(fmt.Sprintf("10.2.0.%d", i+1), ""))...)
			if i == 0 {
				Eventually(rulesOf(ctx, ns, "large"), "500ms").Should(HaveField("Spec.EndpointCount", BeEquivalentTo(502)))
			}
		}
		Eventually(rulesOf(ctx, ns, "large")).Should(HaveField("Spec.EndpointCount", BeEquivalentTo(521)))
		after, err := rulesOf(ctx, ns, "large")()
		Expect(err).NotTo(HaveOccurred())
		writes := after.Generation - rules.Generation
		Expect(writes).To(BeNumerically("<=", 2+int64(time.Since(start).Seconds())))
	})

	It("counts what vanishes with its CRD, and writes it again", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		controller := startController()
		svc := createService(ctx, ns, "cart")
		Eventually(rulesOf(ctx, ns, "cart")).ShouldNot(BeNil())
		all := SatisfyAll(
			HaveField("Inventory", Equal(inventoryOf("default.kubernetes", ns+".cart"))),
			HaveField("UnrenderedServices", BeZero()),
		)
		Eventually(summary(ctx)).Should(all)
		crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "serviceproxyrules.nodeproxy.io"}}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(crd), crd)).To(Succeed())
		again := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crd.Name}, Spec: crd.Spec}
		statuses := statusesSeen(ctx)
		Expect(k8s.Delete(ctx, crd)).To(Succeed())
		controller.looks(ctx, "nodeproxy")
		Eventually(isGone(ctx, crd)).Should(beGone)
		controller.looks(ctx, "nodeproxy")
		Expect(statuses()).To(HaveEach(all))
		Expect(k8s.Create(ctx, again)).To(Succeed())
		Eventually(rulesOf(ctx, ns, "cart"), "45s").ShouldNot(BeNil())
		Expect(eventsOf(ctx, svc, "ServiceNotRendered")()).To(BeEmpty())
	})
})
