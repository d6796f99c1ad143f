package policies

import (
	"math"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// NodePolicyOf reads a policy as people wrote it. The errors name every field that makes no
// sense by itself; what only goes wrong together with other policies or NodeProxy shows
// when settings are resolved. With errors the policy is not to be used; its Selector is
// nil if that is what is wrong.
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

// alone completes settings such that nothing is wrong with them but by what is written:
// of the two intervals that have to fit each other one may come from elsewhere.
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
