package controllers_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// report writes the condition Programmed as a node's agent does.
func report(ctx context.Context, node string, status metav1.ConditionStatus, reason, message string) {
	GinkgoHelper()
	Eventually(func() error {
		rules, err := nodeRules(ctx, node)()
		if err != nil {
			return err
		}
		rules.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionProgrammed, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Now(),
		}}
		return k8s.Status().Update(ctx, rules)
	}).Should(Succeed())
}

// inventoryOf is what the status must state of these names: the sum of their FNV-1a hashes,
// computed here by the definition of that.
func inventoryOf(names ...string) *v1alpha1.Inventory {
	var sum uint64
	for _, name := range names {
		hash := uint64(0xcbf29ce484222325)
		for _, b := range []byte(name) {
			hash = (hash ^ uint64(b)) * 0x100000001b3
		}
		sum += hash
	}
	return &v1alpha1.Inventory{Services: int32(len(names)), Hash: fmt.Sprintf("%016x", sum)} //nolint:gosec // few
}

// denyRulesOf installs an admission policy that denies the rules of one
// Service, and returns once it is enforced.
func denyRulesOf(ctx context.Context, name string) *admissionv1.ValidatingAdmissionPolicyBinding {
	GinkgoHelper()
	all := admissionv1.Exact
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "house-rule"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{MatchPolicy: &all, ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
					Rule: admissionv1.Rule{
						APIGroups: []string{"nodeproxy.io"}, APIVersions: []string{"v1alpha1"}, Resources: []string{"serviceproxyrules"},
					},
				},
			}}},
			Validations: []admissionv1.Validation{{
				Expression: fmt.Sprintf("object.metadata.name != %q || !has(object.spec.ports)", name), Message: "not in this house",
			}},
		},
	}
	Expect(k8s.Create(ctx, policy)).To(Succeed())
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "house-rule"},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "house-rule", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	Expect(k8s.Create(ctx, binding)).To(Succeed())
	probe := &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ServiceProxyRulesSpec{
		FormatVersion: 1, Ports: []v1alpha1.ServicePort{{Protocol: "TCP", Port: 1}}}}
	Eventually(func() error { return k8s.Create(ctx, probe.DeepCopy(), client.DryRunAll) }).Should(
		MatchError(ContainSubstring("not in this house")))
	return binding
}

// withoutRules takes the CEL rules out of a CRD's spec while it runs do.
func withoutRules(ctx context.Context, name string, do func()) {
	GinkgoHelper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	Expect(k8s.Get(ctx, client.ObjectKey{Name: name}, crd)).To(Succeed())
	strict := crd.Spec.DeepCopy()
	root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	spec := root.Properties["spec"]
	spec.XValidations = nil
	settings := spec.Properties["settings"]
	settings.XValidations = nil
	spec.Properties["settings"] = settings
	root.Properties["spec"] = spec
	Expect(k8s.Update(ctx, crd)).To(Succeed())
	defer func() {
		crd.Spec = *strict
		Expect(k8s.Update(ctx, crd)).To(Succeed())
	}()
	do()
}

// blockedRules is the way to an API server that does not answer writes of ServiceProxyRules
// before a channel is closed.
type blockedRules struct {
	http.RoundTripper
	until <-chan struct{}
}

func (h blockedRules) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/serviceproxyrules") {
		select {
		case <-h.until:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return h.RoundTripper.RoundTrip(r)
}
