package controllers_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// skipped are the addresses of rules that are not programmed.
func skipped(rules *v1alpha1.ServiceProxyRules) []string {
	if rules == nil {
		return nil
	}
	var out []string
	for _, s := range rules.Spec.SkippedAddresses {
		out = append(out, s.Address+" "+s.Reason)
	}
	return out
}

// programmed are the external and load-balancer IPs of rules.
func programmed(rules *v1alpha1.ServiceProxyRules) []string {
	if rules == nil {
		return nil
	}
	return append(append([]string{}, rules.Spec.ExternalIPs...), rules.Spec.LoadBalancerIPs...)
}

// setBalanced gives a Service load-balancer IPs.
func setBalanced(ctx context.Context, svc *corev1.Service, ips ...string) {
	GinkgoHelper()
	svc.Status.LoadBalancer.Ingress = nil
	for _, ip := range ips {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	Expect(k8s.Status().Update(ctx, svc)).To(Succeed())
}

var _ = Describe("Addresses of Services", func() {
	It("skips and names those that no Service may have, and follows what changes", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		startController()
		createService(ctx, ns, "bystander", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"198.51.100.9"} })
		svc := createService(ctx, ns, "cart", func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.ExternalIPs = []string{"198.51.100.7", "10.99.0.7"}
		})
		setBalanced(ctx, svc, "127.0.0.1", "192.0.2.77")
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(skipped, ConsistOf("127.0.0.1 is a loopback address")))
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(programmed, ConsistOf("198.51.100.7", "10.99.0.7", "192.0.2.77")))
		Eventually(eventsOf(ctx, svc, "AddressesSkipped")).Should(ContainElement(HaveField("Note", And(
			ContainSubstring("127.0.0.1 is a loopback address"), ContainSubstring("spec.externalIPs")))))
		Eventually(rulesOf(ctx, ns, "bystander")).Should(WithTransform(programmed, ConsistOf("198.51.100.9")))
		untouched, err := rulesOf(ctx, ns, "bystander")()
		Expect(err).NotTo(HaveOccurred())

		By("adding a ServiceCIDR")
		cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: ns}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.99.0.0/24"}}}
		Expect(k8s.Create(ctx, cidr)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { _ = k8s.Delete(ctx, cidr) })
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(skipped, ConsistOf(
			"127.0.0.1 is a loopback address", "10.99.0.7 is inside the service range 10.99.0.0/24")))

		By("naming an API server")
		np := &v1alpha1.NodeProxy{}
		Expect(k8s.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np)).To(Succeed())
		np.Spec.APIServer = &v1alpha1.APIServerSettings{Endpoints: []string{"https://192.0.2.77:6443"}}
		Expect(k8s.Update(ctx, np)).To(Succeed())
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(skipped, ContainElement("192.0.2.77 is the address of an API server")))
		Eventually(rulesOf(ctx, ns, "cart")).Should(WithTransform(programmed, ConsistOf("198.51.100.7")))

		By("having a Node with that address: load balancers on nodes give it out")
		node := createNode(ctx, "balanced-"+ns)
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.77"}}
		Expect(k8s.Status().Update(ctx, node)).To(Succeed())
		Eventually(rulesOf(ctx, ns, "cart")).Should(And(
			WithTransform(programmed, ConsistOf("198.51.100.7", "192.0.2.77")), HaveField("Spec.NodeAddresses", ConsistOf("192.0.2.77"))))

		By("taking all of them away")
		Expect(k8s.Delete(ctx, node)).To(Succeed())
		Expect(k8s.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np)).To(Succeed())
		np.Spec.APIServer = nil
		Expect(k8s.Update(ctx, np)).To(Succeed())
		Expect(k8s.Delete(ctx, cidr)).To(Succeed())
		Eventually(rulesOf(ctx, ns, "cart")).Should(And(
			WithTransform(programmed, ConsistOf("198.51.100.7", "10.99.0.7", "192.0.2.77")), HaveField("Spec.NodeAddresses", BeEmpty())))

		By("leaving others alone")
		Expect(rulesOf(ctx, ns, "bystander")()).To(HaveField("ResourceVersion", untouched.ResourceVersion))
	})
})
