package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Cause is a generation of an object that caused a change.
// +kubebuilder:object:generate=false
type Cause struct {
	// Name of a policy. Empty: NodeProxy.
	Name string `json:"name,omitempty"`
	// Generation is the object's metadata.generation.
	Generation int64 `json:"generation"`
}

// SettingsGrant records when and why a node was given the settings in its NodeProxyRules. It
// is stored in AnnotationRollout.
// +kubebuilder:object:generate=false
type SettingsGrant struct {
	// Time of the change.
	Time metav1.Time `json:"time"`
	// Revision is the settingsRevision that was given.
	Revision string `json:"revision"`
	// By are the causes of the last change. If empty, no rollout waits for the node: it was
	// new, or the change put nothing at risk there.
	By []Cause `json:"by,omitempty"`
	// Owners are the policies that set fields of these settings, by field path, such as
	// ipvs.scheduler.
	Owners map[string]string `json:"owners,omitempty"`
}

// OverridesGrant records what policies made of the Service of a ServiceProxyRules. It is
// stored in AnnotationOverrides.
// +kubebuilder:object:generate=false
type OverridesGrant struct {
	// Overrides are the effective overrides.
	Overrides ServiceOverrides `json:"overrides"`
	// Owners are the policies that set them, by field name.
	Owners map[string]string `json:"owners,omitempty"`
	// By are the causes of the last change, without changes of a Service that nodes rejected
	// already.
	By []Cause `json:"by,omitempty"`
	// Changed: the Service itself changed less than a minute before it was given these
	// overrides, or has changed since, before nodes rejected it. That change may be the reason
	// for the rejection.
	Changed bool `json:"changed,omitempty"`
}
