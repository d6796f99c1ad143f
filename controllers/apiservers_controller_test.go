package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers"
)

// toggledProbe answers for API servers that are not there.
type toggledProbe struct{ answers atomic.Bool }

// Probe implements apiservers.Probe.
func (p *toggledProbe) Probe(context.Context, string) error {
	if p.answers.Load() {
		return nil
	}
	return errors.New("no answer within 5s")
}

// apiServers reads the ConfigMap with the addresses; for Eventually.
func apiServers(ctx context.Context) func() (string, error) {
	return func() (string, error) {
		m := &corev1.ConfigMap{}
		err := k8s.Get(ctx, client.ObjectKey{Namespace: leaseNamespace, Name: "nodeproxy-api-servers"}, m)
		return m.Data["endpoints"], err
	}
}

// strangeSlice adds an EndpointSlice to the Service default/kubernetes, as anyone may who writes
// in that namespace, until the end of the spec.
func strangeSlice(ctx context.Context, address string) {
	GinkgoHelper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "strange", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(6443))}},
		Endpoints:   []discoveryv1.Endpoint{at(address, "")},
	}
	Expect(k8s.Create(ctx, slice)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(k8s.Delete(ctx, slice))).To(Succeed()) })
}

// ownSlice is what the API server itself has entered for default/kubernetes, as
// it is to be in the ConfigMap.
func ownSlice(ctx context.Context) (urls string) {
	GinkgoHelper()
	slice := &discoveryv1.EndpointSlice{}
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, slice)).To(Succeed())
	for _, e := range slice.Endpoints {
		urls += fmt.Sprintf("https://%s:%d\n", e.Addresses[0], *slice.Ports[0].Port)
	}
	return urls
}

var _ = Describe("APIServersReconciler", func() {
	endpoints := func(urls ...string) func(*v1alpha1.NodeProxySpec) {
		return func(s *v1alpha1.NodeProxySpec) { s.APIServer = &v1alpha1.APIServerSettings{Endpoints: urls} }
	}

	It("follows the EndpointSlices, and never writes an empty list", func(ctx SpecContext) {
		own := ownSlice(ctx)
		strangeSlice(ctx, "192.0.2.66")
		controller := startController()
		controller.looks(ctx, "apiservers")
		_, err := apiServers(ctx)()
		Expect(err).To(WithTransform(apierrors.IsNotFound, BeTrue()), "without NodeProxy")
		switchOn(ctx)
		Eventually(apiServers(ctx)).Should(Equal(own))

		By("API servers that change")
		entered := &discoveryv1.EndpointSlice{}
		Expect(k8s.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, entered)).To(Succeed())
		port := *entered.Ports[0].Port
		setEndpoints(ctx, entered, in(at("192.0.2.10", ""), false, false, true), at("192.0.2.12", ""))
		Eventually(apiServers(ctx)).Should(Equal(fmt.Sprintf("https://192.0.2.12:%d\n", port)))
		Eventually(apiServers(ctx), 30*time.Second).Should(Equal(own)) // the API server looks every 10 s

		By("an edit")
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "nodeproxy-api-servers"}}
		Expect(k8s.Patch(ctx, m, client.RawPatch("application/merge-patch+json", []byte(`{"data":{"endpoints":"","mine":"x"}}`)))).To(Succeed())
		Eventually(apiServers(ctx)).Should(Equal(own))
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(m), m)).To(Succeed())
		Expect(m.Data).To(HaveKeyWithValue("mine", "x"))

		By("API servers that are all taken out")
		Expect(k8s.Patch(ctx, entered, client.RawPatch("application/merge-patch+json", []byte(`{"endpoints":[]}`)))).To(Succeed())
		controller.looks(ctx, "apiservers")
		Expect(apiServers(ctx)()).To(Equal(own))
		Eventually(func() string { return ownSlice(ctx) }, 30*time.Second).Should(Equal(own))

		By("a restart, which writes nothing")
		controller.stop()
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(m), m)).To(Succeed())
		second := startController()
		Eventually(func() float64 { return second.metric("nodeproxy_controller_skipped_writes_total") }).Should(BeNumerically(">", 0))
		second.looks(ctx, "apiservers")
		after := &corev1.ConfigMap{}
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(m), after)).To(Succeed())
		Expect(after.ResourceVersion).To(Equal(m.ResourceVersion))

		By("deleting it")
		Expect(k8s.Delete(ctx, m)).To(Succeed())
		Eventually(apiServers(ctx)).Should(Equal(own))
	})

	It("publishes the specified API servers once one of them answers", func(ctx SpecContext) {
		const wrong = "https://127.0.0.1:1"
		right := roleConfig.Host
		createNode(ctx, "n1")
		switchOn(ctx)
		controller := startController()
		report(ctx, "n1", metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
		Eventually(summary(ctx)).Should(WithTransform(ready, Equal("True AllProgrammed: ")))
		before, err := apiServers(ctx)()
		Expect(err).NotTo(HaveOccurred())

		patchNodeProxy(ctx, fmt.Sprintf(`{"spec":{"apiServer":{"endpoints":[%q]}}}`, wrong))
		Eventually(summary(ctx), 30*time.Second).Should(WithTransform(ready, SatisfyAll(
			HavePrefix("False APIServerUnreachable: None of spec.apiServer.endpoints answers"), ContainSubstring(wrong+": dial tcp 127.0.0.1:1: connect: connection refused"))))
		controller.looks(ctx, "apiservers")
		Expect(apiServers(ctx)()).To(Equal(before))

		By("the Service, which answers as long as it is programmed")
		kubernetes := &corev1.Service{}
		Expect(k8s.Get(ctx, client.ObjectKey{Namespace: "default", Name: "kubernetes"}, kubernetes)).To(Succeed())
		patchNodeProxy(ctx, fmt.Sprintf(`{"spec":{"apiServer":{"endpoints":["https://%s:443"]}}}`, kubernetes.Spec.ClusterIP))
		Eventually(summary(ctx), 30*time.Second).Should(WithTransform(ready, SatisfyAll(
			HavePrefix("False APIServerUnreachable: "), ContainSubstring("which the agents program themselves"))))
		controller.looks(ctx, "apiservers")
		Expect(apiServers(ctx)()).To(Equal(before))

		By("one that answers beside one that does not, and the Service")
		own := fmt.Sprintf("https://%s:443", kubernetes.Spec.ClusterIP)
		patchNodeProxy(ctx, fmt.Sprintf(`{"spec":{"apiServer":{"endpoints":[%q,%q,%q]}}}`, own, wrong, right))
		Eventually(apiServers(ctx)).Should(Equal(wrong + "\n" + right + "\n"))
		Eventually(summary(ctx)).Should(WithTransform(ready, Equal("True AllProgrammed: ")))
		Eventually(func() string { return lastWarning(ctx, "APIServerUnreachable") }).Should(SatisfyAll(
			ContainSubstring(own+": this is the Service"), ContainSubstring(wrong+": dial tcp 127.0.0.1:1"), Not(ContainSubstring(right))))

		By("none being specified")
		patchNodeProxy(ctx, `{"spec":{"apiServer":null}}`)
		Eventually(apiServers(ctx)).Should(Equal(before))
	})

	It("tries again and again those that do not answer", func(ctx SpecContext) {
		probe := &toggledProbe{}
		switchOnManaged(ctx, endpoints("https://192.0.2.10:6443"))
		startController(withImage, func(o *controllers.Options) { o.APIServerProbe = probe.Probe })
		Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("False APIServerUnreachable: ")))
		probe.answers.Store(true)
		Eventually(apiServers(ctx), 20*time.Second).Should(Equal("https://192.0.2.10:6443\n"))
		Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("False NoNodes: ")))
	})
})
