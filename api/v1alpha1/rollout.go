package v1alpha1

import "k8s.io/apimachinery/pkg/util/intstr"

// RolloutSettings say how fast a change of settings reaches the nodes.
type RolloutSettings struct {
	// maxUnavailable is how many of the nodes may be without their settings in
	// force, or not Programmed, for a change to go on to the next: a number of
	// nodes, or a percentage of those that the object is for, such as "10%",
	// rounded down, at least one. Default: 1. Source: people or GitOps.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=4
	// +kubebuilder:validation:XValidation:rule=`type(self) == int ? self >= 1 : self.matches('^([1-9][0-9]?|100)%$')`,message=`rollout.maxUnavailable must be a number of nodes, 1 or more, or 1% to 100%`
	// +kubebuilder:validation:XValidation:rule=`type(self) != int || self <= 2147483647`,message=`rollout.maxUnavailable must be 2147483647 nodes at most`
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`

	// progressDeadlineSeconds is how long a node may take to report that its new
	// settings are in force, in seconds. When one takes longer the change goes to
	// no further node until that one reports it, or the spec that caused it is
	// changed. Default: 600. Source: people or GitOps.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self >= 1`,message=`rollout.progressDeadlineSeconds must be 1 or more`
	// +kubebuilder:validation:Maximum=2147483647
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`

	// paused true lets no further node have a change: those that have it keep it,
	// all others keep what they have. Default: false. Source: people or GitOps.
	// +optional
	Paused *bool `json:"paused,omitempty"`
}
