package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// incompleteRetry is when a node is rendered again at the latest that lacks local endpoints.
const incompleteRetry = time.Minute

const leftOutMetric = "nodeproxy_controller_left_out_local_endpoints"

// createCrowd creates a slice of a Service with many ports on every endpoint.
func createCrowd(ctx context.Context, namespace, service string, ports int, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	GinkgoHelper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service + "-a", Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
	}
	for i := range ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprintf("port-%02d", i)), Port: new(int32(8000 + i))}) //nolint:gosec // small
	}
	Expect(k8s.Create(ctx, slice)).To(Succeed())
	return slice
}

// manyOn are n endpoints on a node.
func manyOn(node string, n int) (out []discoveryv1.Endpoint) {
	for i := range n {
		out = append(out, at(fmt.Sprintf("10.5.%d.%d", i/250, i%250+1), node))
	}
	return out
}

// carried are the Services of a namespace whose local endpoints a node's rules carry.
func carried(namespace string) func(*v1alpha1.NodeProxyRules) []string {
	return func(rules *v1alpha1.NodeProxyRules) (out []string) {
		for _, s := range rules.Spec.LocalEndpoints {
			if s.Namespace == namespace {
				out = append(out, s.Name)
			}
		}
		return out
	}
}

// localEndpointsIn are the local endpoints of a node that are of one namespace.
func localEndpointsIn(namespace string) func(*v1alpha1.NodeProxyRules) []string {
	return func(rules *v1alpha1.NodeProxyRules) []string {
		return slices.DeleteFunc(localEndpoints(rules), func(m string) bool { return !strings.HasPrefix(m, namespace+"/") })
	}
}

var _ = Describe("NodeReconciler, where a node has too many local endpoints", func() {
	It("leaves out those of the namespace that exceeds its limit, and brings all back once it does not", func(ctx SpecContext) {
		const services, ports, fitting = 60, 100, 10
		honest, crowd := newNamespace(ctx), newNamespace(ctx)
		switchOn(ctx)
		controller := startController()
		createNode(ctx, "n1")
		createService(ctx, honest, "cart")
		cart := createSlice(ctx, honest, "cart", "cart-a", manyOn("n1", 400)...)
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(localEndpointsIn(honest), HaveLen(400)))

		By("one pod behind 60 Services of 100 ports")
		name := func(i int) string { return fmt.Sprintf("s%03d", i) }
		byName := map[string]*corev1.Service{}
		var crowded []*discoveryv1.EndpointSlice
		for i := range services {
			byName[name(i)] = createService(ctx, crowd, name(i))
			crowded = append(crowded, createCrowd(ctx, crowd, name(i), ports, at("10.9.0.1", "n1")))
		}
		// Writes of so many bytes are spaced, by the clock that is put forward here.
		waker := createSlice(ctx, newNamespace(ctx), "waker", "waker-a")
		calls, tries := 0, 0
		settled := func(want OmegaMatcher) {
			GinkgoHelper()
			calls++ // what is rendered since then has an address of this call
			Eventually(func(g Gomega) {
				testClock.putForward(time.Minute)
				tries++
				setEndpoints(ctx, waker, at(fmt.Sprintf("10.6.%d.%d", calls, tries%250+1), "n1"))
				g.Expect(nodeRules(ctx, "n1")()).To(SatisfyAll(want,
					WithTransform(localEndpoints, ContainElement(ContainSubstring(fmt.Sprintf("/waker 10.6.%d.", calls))))))
			}).WithTimeout(time.Minute).WithPolling(250 * time.Millisecond).Should(Succeed())
			// What was asked for last is written later than what was seen, maybe.
			Eventually(nodeRules(ctx, "n1")).WithTimeout(time.Minute).Should(WithTransform(localEndpoints,
				ContainElement(ContainSubstring(fmt.Sprintf("/waker 10.6.%d.%d", calls, tries%250+1)))))
		}
		setEndpoints(ctx, cart, append(cart.Endpoints, at("10.7.0.1", "n1"))...)
		settled(SatisfyAll(
			WithTransform(localEndpointsIn(honest), HaveLen(401)),
			WithTransform(carried(crowd), SatisfyAll(Not(BeEmpty()), WithTransform(func(s []string) int { return len(s) }, BeNumerically("<", services)))),
		))
		createNode(ctx, "n2") // which others hold up in nothing
		Eventually(nodeRules(ctx, "n2")).ShouldNot(BeNil())
		rules, err := nodeRules(ctx, "n1")()
		Expect(err).NotTo(HaveOccurred())
		rendered := carried(crowd)(rules)
		Expect(len(rendered)).To(BeNumerically(">", fitting))
		Eventually(func() float64 { return controller.metric(leftOutMetric) }).Should(BeEquivalentTo(services - len(rendered)))
		reported := 0
		for i := range services {
			events, err := eventsOf(ctx, byName[name(i)], "LocalEndpointsLeftOut")()
			Expect(err).NotTo(HaveOccurred())
			if reported += len(events); len(events) > 0 {
				Expect(events[0].Note).To(SatisfyAll(ContainSubstring("The rules of node n1 "), ContainSubstring("exceed the limit of 131072 bytes")))
				Expect(rendered).NotTo(ContainElement(name(i)))
			}
		}
		Expect(reported).To(BeNumerically(">", 0))
		Expect(eventsOf(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: honest, Name: "cart"}}, "LocalEndpointsLeftOut")()).To(BeEmpty())

		By("restarting, which changes nothing")
		before := versions(ctx)["node n1"]
		controller.stop()
		controller = startController()
		controller.firstLooks("node")
		Expect(versions(ctx)["node n1"]).To(Equal(before))
		Eventually(func() float64 { return controller.metric(leftOutMetric) }).Should(BeEquivalentTo(services - len(rendered)))

		By("most of it going")
		for _, slice := range crowded[fitting:] {
			Expect(k8s.Delete(ctx, slice)).To(Succeed())
		}
		settled(SatisfyAll(WithTransform(localEndpointsIn(honest), HaveLen(401)), WithTransform(carried(crowd), HaveLen(fitting))))
		Eventually(func() float64 { return controller.metric(leftOutMetric) }).Should(BeZero())
	})

	It("leaves out a Service that is over the limit by itself, on that node alone", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		controller := startController()
		createNode(ctx, "n1")
		createNode(ctx, "n2")
		large := createService(ctx, ns, "large")
		createService(ctx, ns, "cart")
		createSlice(ctx, ns, "cart", "cart-a", at("10.1.0.1", "n1"))
		slice := createCrowd(ctx, ns, "large", 100, append(manyOn("n1", 200), at("10.7.0.1", "n2"))...)
		Eventually(eventsOf(ctx, large, "LocalEndpointsLeftOut")).Should(ConsistOf(
			HaveField("Note", SatisfyAll(HavePrefix("The rules of node n1 "), ContainSubstring("the limit of 131072 for one namespace")))))
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(carried(ns), Equal([]string{"cart"})))
		Eventually(nodeRules(ctx, "n2")).Should(WithTransform(carried(ns), Equal([]string{"large"})))
		Expect(controller.metric(leftOutMetric)).To(BeEquivalentTo(1))

		By("shrinking again")
		setEndpoints(ctx, slice, at("10.5.0.1", "n1"))
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(carried(ns), Equal([]string{"cart", "large"})))
		Eventually(nodeRules(ctx, "n2")).Should(WithTransform(carried(ns), BeEmpty()))
		Eventually(func() float64 { return controller.metric(leftOutMetric) }).Should(BeZero())
	})

	It("renders all nodes of a Service that returns within its limits after a restart", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		controller := startController()
		createNode(ctx, "n1")
		createService(ctx, ns, "cart")
		small := createSlice(ctx, ns, "cart", "cart-small", at("10.1.0.1", "n1"))
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(localEndpoints, HaveLen(1)))
		controller.stop()

		By("starting while the Service is over a limit")
		setEndpoints(ctx, small, at("10.1.0.1", "n1"), at("10.1.0.2", "n1"))
		large := createCrowd(ctx, ns, "cart", v1alpha1.MaxServicePortEndpoints/1000+1, manyOn("", 1000)...)
		startController().firstLooks("node")
		Expect(nodeRules(ctx, "n1")()).To(WithTransform(localEndpoints, HaveLen(1)))

		By("a slice going that does not name the node")
		Expect(k8s.Delete(ctx, large)).To(Succeed())
		Eventually(nodeRules(ctx, "n1")).WithTimeout(incompleteRetry / 2).Should(WithTransform(localEndpoints, HaveLen(2)))
	})

	It("spaces the writes of many bytes, and loses no change", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		controller := startController()
		createNode(ctx, "n1")
		createService(ctx, ns, "cart")
		slice := createCrowd(ctx, ns, "cart", 100, manyOn("n1", 60)...) // about 110 KiB: 0.8 s each
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(carried(ns), HaveLen(1)))
		before := controller.nodeWrites()
		const changes = 20
		for i := range changes {
			setEndpoints(ctx, slice, append(manyOn("n1", 60), at(fmt.Sprintf("10.8.0.%d", i+1), "n1"))...)
		}
		Eventually(nodeRules(ctx, "n1")).Should(WithTransform(localEndpoints, ContainElement(fmt.Sprintf("%s/cart 10.8.0.%d:8000", ns, changes))))
		Expect(controller.nodeWrites() - before).To(BeNumerically("<", changes/2))
	})
})

// nodeWrites counts the updates of NodeProxyRules.
func (r *running) nodeWrites() (count float64) {
	GinkgoHelper()
	families, err := r.metrics.Gather()
	Expect(err).NotTo(HaveOccurred())
	for _, f := range families {
		if f.GetName() != "nodeproxy_controller_writes_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == "NodeProxyRules" {
					count += m.GetCounter().GetValue()
				}
			}
		}
	}
	return count
}
