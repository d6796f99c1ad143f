package controllers_test

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// mine marks what users write: by these GitOps tools know their own objects, and
// would prune what has them and is in no repository.
func mine(object client.Object) {
	object.SetLabels(map[string]string{"app.kubernetes.io/instance": "mine", "pool": "edge"})
	object.SetAnnotations(map[string]string{
		"argocd.argoproj.io/tracking-id":                   "mine:nodeproxy.io/NodeProxyPolicy:default/mine",
		"kubectl.kubernetes.io/last-applied-configuration": "{}",
	})
	object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "mine", UID: "1"}})
}

// asWritten is an object but for its status and what the API server reports of it.
type asWritten struct {
	Labels, Annotations map[string]string
	Owners              []metav1.OwnerReference
	Finalizers          []string
	Generation          int64
	Spec                any
	// Managers are who has written something else than the status.
	Managers string
}

func writtenOf(ctx context.Context, object client.Object) asWritten {
	GinkgoHelper()
	now := &unstructured.Unstructured{}
	kinds, _, err := k8s.Scheme().ObjectKinds(object)
	Expect(err).NotTo(HaveOccurred())
	now.SetGroupVersionKind(kinds[0])
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(object), now)).To(Succeed())
	w := asWritten{
		Labels: now.GetLabels(), Annotations: now.GetAnnotations(), Owners: now.GetOwnerReferences(),
		Finalizers: now.GetFinalizers(), Generation: now.GetGeneration(), Spec: now.Object["spec"],
	}
	for _, m := range now.GetManagedFields() {
		if m.Subresource == "" {
			w.Managers += fmt.Sprintf("%s %s %s\n", m.Manager, m.Operation, m.FieldsV1)
		}
	}
	return w
}

var _ = Describe("what users write", func() {
	It("stays as it is, and is copied to nothing that is rendered", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
		nodePolicy := &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
		nodePolicy.Spec.Settings.Mode = new(v1alpha1.ModeIPVS)
		servicePolicy := &v1alpha1.ServiceProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
		servicePolicy.Spec.Overrides.IPVSScheduler = new("sh")
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "cart"}}
		service.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}}
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "cart-1"}, AddressType: discoveryv1.AddressTypeIPv4}
		slice.Endpoints = []discoveryv1.Endpoint{at("10.244.1.5", "edge-1")}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "edge-1"}}
		people := []client.Object{np, nodePolicy, servicePolicy, service, slice, node}
		DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(k8s.Delete(ctx, servicePolicy))).To(Succeed()) })
		before := map[client.Object]asWritten{}
		for _, object := range people {
			mine(object)
			if object == slice {
				slice.Labels[discoveryv1.LabelServiceName] = "cart"
			}
			if object == node {
				node.Labels[corev1.LabelOSStable] = "linux"
			}
			Expect(k8s.Create(ctx, object)).To(Succeed())
			before[object] = writtenOf(ctx, object)
		}

		startController()
		Eventually(nodeRules(ctx, "edge-1")).Should(HaveField("Spec.Policies", Equal([]string{"mine"})))
		echo(ctx, "edge-1")
		Eventually(policyReady(ctx, nodePolicy)).Should(ContainSubstring(v1alpha1.ReasonApplied))
		Eventually(rulesOf(ctx, ns, "cart")).Should(HaveField("Spec.Policies", Equal([]string{"mine"})))
		Eventually(func() (int32, error) {
			err := k8s.Get(ctx, client.ObjectKeyFromObject(servicePolicy), servicePolicy)
			return servicePolicy.Status.Services, err
		}).Should(BeNumerically(">=", 1))
		// Once more, by an edit and by a policy that goes.
		edit(ctx, nodePolicy, func() { nodePolicy.Spec.Settings.Fallback = new(v1alpha1.FallbackIPTables) })
		before[nodePolicy] = writtenOf(ctx, nodePolicy)
		Eventually(nodeRules(ctx, "edge-1")).Should(HaveField("Spec.Settings.Fallback", HaveValue(Equal(v1alpha1.FallbackIPTables))))
		echo(ctx, "edge-1")
		Eventually(policyReady(ctx, nodePolicy)).Should(ContainSubstring(v1alpha1.ReasonApplied))

		for _, object := range people {
			Expect(writtenOf(ctx, object)).To(Equal(before[object]), "%T %s", object, object.GetName())
		}
		for _, object := range []client.Object{
			&v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "edge-1"}},
			&v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ServiceProxyRulesName(ns, "cart")}},
		} {
			rendered := writtenOf(ctx, object)
			Expect(rendered.Owners).To(BeEmpty(), "%T", object)
			Expect(rendered.Finalizers).To(BeEmpty(), "%T", object)
			for key := range rendered.Annotations {
				Expect(key).To(HavePrefix("nodeproxy.io/"), "%T", object)
			}
			Expect(rendered.Labels).To(BeEmpty(), "%T", object)
		}
	})
})
