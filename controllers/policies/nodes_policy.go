package policies

import (
	"math"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// NodePolicyOf parses a policy. The errors name every field that is invalid by itself; conflicts
// with other policies or NodeProxy show when settings are resolved. A policy with errors must not
// be used; its Selector is nil if it is invalid.
func NodePolicyOf(p *v1alpha1.NodeProxyPolicy) (NodePolicy, field.ErrorList) {
	spec := field.NewPath("spec")
	selector, errs := Selector(p.Spec.NodeSelector, spec.Child("nodeSelector"))
	settings := (*v1alpha1.ProxySettings)(&p.Spec.Settings)
	out := NodePolicy{Name: p.Name, Selector: selector, Settings: settings}
	if p.Spec.Priority != nil {
		out.Priority = *p.Spec.Priority
	}
	return out, append(errs, v1alpha1.ValidateSettings(alone(settings))...)
}

// alone completes settings so that only what the policy sets can be invalid: of the two intervals
// that must fit each other, one may be set elsewhere.
func alone(written *v1alpha1.ProxySettings) *v1alpha1.ProxySettings {
	complete := v1alpha1.CompleteSettings(written)
	if written.Sync == nil || written.Sync.MinIntervalMilliseconds == nil {
		complete.Sync.MinIntervalMilliseconds = new(int32(0))
	}
	if written.Sync == nil || written.Sync.VerifyIntervalSeconds == nil {
		complete.Sync.VerifyIntervalSeconds = new(int32(math.MaxInt32))
	}
	return complete
}
