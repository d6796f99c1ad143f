package controllers_test

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	. "github.com/onsi/gomega/gstruct"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var _ = Describe("NodeProxyReconciler", func() {
	It("publishes the inventory of what must exist", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		createService(ctx, ns, "before")
		switchOn(ctx)
		controller := startController()
		Eventually(summary(ctx)).Should(HaveField("Inventory", Equal(inventoryOf("default.kubernetes", ns+".before"))))
		svc := createService(ctx, ns, "cart")
		createService(ctx, ns, "headless", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone })
		want := inventoryOf("default.kubernetes", ns+".before", ns+".cart")
		Eventually(summary(ctx)).Should(HaveField("Inventory", Equal(want)))

		By("rules deleted by hand, which changes nothing")
		statuses := statusesSeen(ctx)
		Expect(k8s.DeleteAllOf(ctx, &v1alpha1.ServiceProxyRules{})).To(Succeed())
		controller.looks(ctx, "nodeproxy")
		Eventually(rulesOf(ctx, ns, "cart")).ShouldNot(BeNil())
		controller.looks(ctx, "nodeproxy", "service")
		Expect(statuses()).To(HaveEach(HaveField("Inventory", Equal(want))))

		By("a Service ending")
		Expect(k8s.Delete(ctx, svc)).To(Succeed())
		Eventually(summary(ctx)).Should(HaveField("Inventory", Equal(inventoryOf("default.kubernetes", ns+".before"))))
		Expect(summary(ctx)()).To(MatchFields(IgnoreExtras, Fields{
			"Version": Equal("v0.0.0-test"), "ObservedGeneration": BeEquivalentTo(1), "UnrenderedServices": BeZero(),
		}))
	})

	It("writes at most once a second, whatever happens", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		startController()
		Eventually(summary(ctx)).Should(HaveField("Inventory", Not(BeNil())))
		w, err := k8s.Watch(ctx, &v1alpha1.NodeProxyList{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(w.Stop)
		start := time.Now()
		for i := range 30 {
			createService(ctx, ns, fmt.Sprintf("s%d", i))
			Eventually(rulesOf(ctx, ns, fmt.Sprintf("s%d", i))).ShouldNot(BeNil())
		}
		Eventually(summary(ctx)).Should(HaveField("Inventory.Services", BeEquivalentTo(31)))
		writes := 0
		for done := false; !done; {
			select {
			case <-w.ResultChan():
				writes++
			default:
				done = true
			}
		}
		// The watch begins with what is there.
		Expect(writes).To(BeNumerically("<=", 3+int(time.Since(start).Seconds())))
	})

	It("sums up what the nodes report", func(ctx SpecContext) {
		switchOn(ctx)
		startController()
		Eventually(summary(ctx)).Should(WithTransform(ready, Equal("False NoNodes: There is no Linux Node.")))
		createNode(ctx, "n1")
		createNode(ctx, "n2")
		createNode(ctx, "n3")
		Eventually(summary(ctx)).Should(WithTransform(ready, Equal(
			"False NodesNotProgrammed: Node n1: no report from its agent yet (and 2 more). Check that nodeproxy-agent runs there.")))
		report(ctx, "n1", metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
		report(ctx, "n2", metav1.ConditionFalse, v1alpha1.ReasonFailed, "iptables-restore: exit status 4")
		report(ctx, "n3", metav1.ConditionTrue, v1alpha1.ReasonRetained, "")
		Eventually(summary(ctx)).Should(SatisfyAll(
			WithTransform(ready, Equal("False NodesNotProgrammed: Node n2: Failed: iptables-restore: exit status 4.")),
			HaveField("Nodes", Equal(v1alpha1.NodeCounts{Total: 3, Programmed: 2, NotProgrammed: 1})),
		))
		report(ctx, "n2", metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
		Eventually(summary(ctx)).Should(WithTransform(ready, Equal("True AllProgrammed: ")))
	})

	It("names and counts a Service that an admission policy denies, and others continue", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		binding := denyRulesOf(ctx, ns+".bad")
		controller := startController()
		bad := createService(ctx, ns, "bad")
		createService(ctx, ns, "good")
		Eventually(rulesOf(ctx, ns, "good")).ShouldNot(BeNil())
		Eventually(summary(ctx)).Should(SatisfyAll(
			HaveField("UnrenderedServices", BeEquivalentTo(1)),
			HaveField("Unrendered", ConsistOf(MatchAllFields(Fields{
				"Namespace": Equal(ns), "Name": Equal("bad"), "Message": ContainSubstring("not in this house"),
			}))),
			HaveField("Inventory", Equal(inventoryOf("default.kubernetes", ns+".good"))), // nothing of it is stored
		))
		Expect(controller.metric("nodeproxy_controller_unrendered_services")).To(BeEquivalentTo(1))
		Eventually(eventsOf(ctx, bad, "ServiceNotRendered")).Should(ConsistOf(SatisfyAll(
			HaveField("Type", corev1.EventTypeWarning), HaveField("Note", ContainSubstring("not in this house")),
		)))

		By("changes, which are tried at once but not reported again")
		slice := createSlice(ctx, ns, "bad", "bad-a", at("10.1.0.1", ""))
		setEndpoints(ctx, slice, at("10.1.0.2", ""))
		createSlice(ctx, ns, "good", "good-a", at("10.1.0.3", ""))
		Eventually(rulesOf(ctx, ns, "good")).Should(WithTransform(addresses, HaveLen(1)))
		controller.looks(ctx, "service")
		Expect(eventsOf(ctx, bad, "ServiceNotRendered")()).To(ConsistOf(HaveField("Series", BeNil())))

		By("a restart, over which the count stays, though it is not known at startup what is rejected")
		controller.stop()
		statuses := statusesSeen(ctx)
		config, held := rest.CopyConfig(roleConfig), make(chan struct{})
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return blockedRules{next, held} })
		controller = startControllerAs(config)
		controller.firstLooks("nodeproxy")
		controller.looks(ctx, "nodeproxy")
		close(held)
		controller.looks(ctx, "nodeproxy", "service")
		Expect(statuses()).To(HaveEach(HaveField("UnrenderedServices", BeEquivalentTo(1))))
		Eventually(func() float64 { return controller.metric("nodeproxy_controller_unrendered_services") }).Should(BeEquivalentTo(1))

		By("the policy going and the Service changing")
		Expect(k8s.Delete(ctx, binding)).To(Succeed())
		probe := &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: ns + ".bad"}, Spec: v1alpha1.ServiceProxyRulesSpec{
			FormatVersion: 1, Ports: []v1alpha1.ServicePort{{Protocol: "TCP", Port: 1}}}}
		Eventually(func() error { return k8s.Create(ctx, probe.DeepCopy(), client.DryRunAll) }).Should(Succeed())
		setEndpoints(ctx, slice, at("10.1.0.9", ""))
		Eventually(rulesOf(ctx, ns, "bad")).Should(WithTransform(addresses, HaveLen(1)))
		Eventually(summary(ctx)).Should(SatisfyAll(
			HaveField("UnrenderedServices", BeZero()), HaveField("Unrendered", BeEmpty()),
			HaveField("Inventory", Equal(inventoryOf("default.kubernetes", ns+".good", ns+".bad"))),
		))
		Expect(controller.metric("nodeproxy_controller_unrendered_services")).To(BeZero())
	})

	It("retries what was denied, after a minute", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		binding := denyRulesOf(ctx, ns+".bad")
		controller := startController()
		svc := createService(ctx, ns, "bad")
		Eventually(summary(ctx)).Should(HaveField("UnrenderedServices", BeEquivalentTo(1)))
		Expect(k8s.Delete(ctx, binding)).To(Succeed())
		probe := &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: ns + ".bad"}, Spec: v1alpha1.ServiceProxyRulesSpec{
			FormatVersion: 1, Ports: []v1alpha1.ServicePort{{Protocol: "TCP", Port: 1}}}}
		Eventually(func() error { return k8s.Create(ctx, probe.DeepCopy(), client.DryRunAll) }).Should(Succeed())
		By("a change that comes too early")
		controller.looksAt(ctx, "service", func() { touch(ctx, svc) }, ns+"/bad")
		_, err := rulesOf(ctx, ns, "bad")()
		Expect(err).To(WithTransform(apierrors.IsNotFound, BeTrue()))

		By("one that comes in time")
		testClock.putForward(time.Minute)
		touch(ctx, svc)
		Eventually(rulesOf(ctx, ns, "bad")).ShouldNot(BeNil())
	})

	It("rejects a Service whose rules would be larger than 1 MiB, and retains the stored rules", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		startController()
		big := createService(ctx, ns, "big")
		slice := createSlice(ctx, ns, "big", "big-a", at("10.1.0.1", ""))
		Eventually(rulesOf(ctx, ns, "big")).Should(WithTransform(addresses, HaveLen(1)))

		// Eight node hints of 253 characters each, other ones for every endpoint.
		var endpoints []discoveryv1.Endpoint
		for i := range 600 {
			e := at(fmt.Sprintf("10.2.%d.%d", i/250, i%250+1), "")
			e.Hints = &discoveryv1.EndpointHints{}
			for h := range 8 {
				name := fmt.Sprintf("n-%d-%d.", i, h)
				e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: name + strings.Repeat("a", 250-len(name))})
			}
			endpoints = append(endpoints, e)
		}
		half := createSlice(ctx, ns, "big", "big-b", endpoints[:300]...)
		createSlice(ctx, ns, "big", "big-c", endpoints[300:]...)
		Eventually(summary(ctx)).Should(SatisfyAll(
			HaveField("UnrenderedServices", BeEquivalentTo(1)),
			HaveField("Unrendered", ConsistOf(HaveField("Message", ContainSubstring("larger than 1 MiB")))),
			HaveField("Inventory", Equal(inventoryOf("default.kubernetes", ns+".big"))), // its object is stored
		))
		Eventually(eventsOf(ctx, big, "ServiceNotRendered")).Should(HaveLen(1))
		Expect(rulesOf(ctx, ns, "big")()).NotTo(BeNil())
		createService(ctx, ns, "small")
		Eventually(rulesOf(ctx, ns, "small")).ShouldNot(BeNil())

		By("shrinking again, after the pause of a Service of this size")
		testClock.putForward(time.Minute)
		Expect(k8s.Delete(ctx, half)).To(Succeed())
		Eventually(summary(ctx)).Should(HaveField("UnrenderedServices", BeZero()))
		setEndpoints(ctx, slice, at("10.1.0.2", ""))
		Eventually(rulesOf(ctx, ns, "big")).Should(HaveField("Spec.EndpointCount", BeEquivalentTo(301)))
	})

	It("rejects a Service over a limit, retains the stored rules, and continues with the others", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		startController()
		big := createService(ctx, ns, "big")
		Eventually(rulesOf(ctx, ns, "big")).ShouldNot(BeNil())
		edit(ctx, big, func() {
			big.Spec.Ports = nil
			for i := range v1alpha1.MaxServicePorts + 1 {
				big.Spec.Ports = append(big.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(i + 1)})
			}
		})
		Eventually(summary(ctx)).Should(SatisfyAll(
			HaveField("UnrenderedServices", BeEquivalentTo(1)),
			HaveField("Unrendered", ConsistOf(HaveField("Message", Equal("it has 1001 ports, more than the limit of 1000; split the Service")))),
			HaveField("Inventory", Equal(inventoryOf("default.kubernetes", ns+".big"))),
		))
		Eventually(eventsOf(ctx, big, "ServiceNotRendered")).Should(HaveLen(1))
		Expect(rulesOf(ctx, ns, "big")()).To(HaveField("Spec.Ports", HaveLen(1)))
		createService(ctx, ns, "small")
		Eventually(rulesOf(ctx, ns, "small")).ShouldNot(BeNil())

		By("shrinking again")
		edit(ctx, big, func() { big.Spec.Ports = big.Spec.Ports[:2] })
		Eventually(rulesOf(ctx, ns, "big")).Should(HaveField("Spec.Ports", HaveLen(2)))
		Eventually(summary(ctx)).Should(HaveField("UnrenderedServices", BeZero()))
	})

	It("reports once what it cannot use, and programs the rest", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		controller := startController()
		svc := createService(ctx, ns, "cart")
		slice := createSlice(ctx, ns, "cart", "cart-a", at("10.1.0.1", ""))
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{})
		noNumber := "admin"
		slice.Ports[1].Name = &noNumber
		Expect(k8s.Update(ctx, slice)).To(Succeed())
		Eventually(eventsOf(ctx, svc, "EndpointsSkipped")).Should(ConsistOf(HaveField("Note",
			ContainSubstring(`EndpointSlice cart-a: port "admin" has no number`))))
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, HaveLen(1)))

		setEndpoints(ctx, slice, at("10.1.0.1", ""), at("10.1.0.2", ""))
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(addresses, HaveLen(2)))
		controller.looks(ctx, "service")
		Expect(eventsOf(ctx, svc, "EndpointsSkipped")()).To(ConsistOf(HaveField("Series", BeNil())))

		By("another problem, which is another event once ten minutes have passed")
		testClock.putForward(10 * time.Minute)
		second := createSlice(ctx, ns, "cart", "a-second", at("10.1.0.3", ""))
		second.Ports[0].Port = nil
		Expect(k8s.Update(ctx, second)).To(Succeed())
		Eventually(eventsOf(ctx, svc, "EndpointsSkipped")).Should(ContainElement(HaveField("Note",
			ContainSubstring(`EndpointSlice a-second: port "http" has no number; EndpointSlice cart-a`))))

		By("one more problem of the same slice, which waits for its event until ten minutes have passed")
		second.Ports = append(second.Ports, discoveryv1.EndpointPort{Name: new("metrics")})
		controller.looksAt(ctx, "service", func() { Expect(k8s.Update(ctx, second)).To(Succeed()) }, ns+"/cart")
		Expect(eventsOf(ctx, svc, "EndpointsSkipped")()).To(HaveLen(2))
		testClock.putForward(10 * time.Minute)
		Eventually(eventsOf(ctx, svc, "EndpointsSkipped")).Should(ContainElement(HaveField("Note",
			ContainSubstring(`EndpointSlice a-second: port "http" has no number; EndpointSlice a-second: port "metrics" has no number`))))
	})

	It("states which source ranges it cannot use, and that they leave a Service open", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		startController()
		svc := createService(ctx, ns, "cart", func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.LoadBalancerSourceRanges = []string{"2001:db8::/32"}
		})
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
		Expect(k8s.Status().Update(ctx, svc)).To(Succeed())
		Eventually(eventsOf(ctx, svc, "SourceRangesUnusable")).Should(ConsistOf(HaveField("Note",
			ContainSubstring("its IPv4 load-balancer addresses are open to every source"))))
		Eventually(rulesOf(ctx, ns, "cart")).Should(HaveField("Spec.LoadBalancerIPs", ConsistOf("203.0.113.9")))
	})

	It("keeps what nodes have when settings are not valid", func(ctx SpecContext) {
		bit := int32(3)
		np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
		np.Spec.Settings = &v1alpha1.WrittenSettings{Masquerade: &v1alpha1.MasqueradeSettings{Bit: &bit}}
		Expect(k8s.Create(ctx, np)).To(Succeed())
		controller := startController()
		createNode(ctx, "n1")
		Eventually(nodeRules(ctx, "n1")).Should(HaveField("Spec.Settings.Masquerade.Bit", HaveValue(BeEquivalentTo(3))))
		Eventually(rulesOf(ctx, "default", "kubernetes")).ShouldNot(BeNil())
		before := versions(ctx)

		By("storing what the API denies today, as an older CRD let it in")
		setBit := func() error {
			patch := []byte(`{"spec":{"settings":{"masquerade":{"bit":77}}}}`)
			return k8s.Patch(ctx, np.DeepCopy(), client.RawPatch(types.MergePatchType, patch))
		}
		Expect(setBit()).To(MatchError(ContainSubstring("masquerade.bit")))
		withoutRules(ctx, "nodeproxies.nodeproxy.io", func() { Eventually(setBit).Should(Succeed()) })
		Eventually(summary(ctx)).Should(SatisfyAll(
			WithTransform(ready, SatisfyAll(HavePrefix("False InvalidSettings: "), ContainSubstring("spec.settings.masquerade.bit"), ContainSubstring("77"))),
			HaveField("ObservedGeneration", BeEquivalentTo(2)),
		))
		controller.looks(ctx, "node", "rollout")
		Expect(versions(ctx)).To(Equal(before))

		By("a restart and a new Node, which gets none")
		controller.stop()
		controller = startController()
		createNode(ctx, "n2")
		controller.looks(ctx, "service", "node", "rollout")
		Expect(versions(ctx)).To(Equal(before))

		By("fixing it")
		Eventually(func() error {
			if err := k8s.Get(ctx, client.ObjectKeyFromObject(np), np); err != nil {
				return err
			}
			np.Spec.Settings = nil
			return k8s.Update(ctx, np)
		}).Should(Succeed())
		Eventually(nodeRules(ctx, "n2")).Should(HaveField("Spec.Settings.Masquerade.Bit", HaveValue(BeEquivalentTo(14))))
		Eventually(nodeRules(ctx, "n1")).Should(HaveField("Spec.Settings.Masquerade.Bit", HaveValue(BeEquivalentTo(14))))
	})
})
