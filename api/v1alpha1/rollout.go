package v1alpha1

import "k8s.io/apimachinery/pkg/util/intstr"

// RolloutSettings control how fast a change of settings reaches the nodes.
type RolloutSettings struct {
	// maxUnavailable is how many nodes may be unavailable (settings not applied, or not
	// Programmed) while the change proceeds to the next node: a number of nodes, or a
	// percentage of the nodes that the object selects, such as "10%", rounded down, at least
	// one. Default: 1. Source: user.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule=`type(self) == int ? self >= 1 : self.matches('^([1-9][0-9]?|100)%$')`,message=`rollout.maxUnavailable must be a number of nodes, 1 or more, or 1% to 100%`
	// +kubebuilder:validation:XValidation:rule=`type(self) != int || self <= 2147483647`,message=`rollout.maxUnavailable must be at most 2147483647 nodes`
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`

	// progressDeadlineSeconds is how long a node may take to report its new settings as
	// applied, in seconds. If one takes longer, the rollout halts until that node reports them
	// or the spec that caused the change is edited. Default: 600. Source: user.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self >= 1`,message=`rollout.progressDeadlineSeconds must be 1 or more`
	// +kubebuilder:validation:Maximum=2147483647
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`

	// paused true stops the change from reaching further nodes; nodes that have it keep it.
	// Default: false. Source: user.
	// +optional
	Paused *bool `json:"paused,omitempty"`
}
