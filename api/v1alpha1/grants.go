package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Cause is a generation of an object that caused a change.
// +kubebuilder:object:generate=false
type Cause struct {
	// Name of a policy; empty for NodeProxy.
	Name string `json:"name,omitempty"`
	// Generation is the object's metadata.generation.
	Generation int64 `json:"generation"`
}

// SettingsGrant is when and why a node got the settings in its NodeProxyRules
// (AnnotationRollout).
// +kubebuilder:object:generate=false
type SettingsGrant struct {
	// Time of the change.
	Time metav1.Time `json:"time"`
	// Revision is the settingsRevision of these settings.
	Revision string `json:"revision"`
	// By are the causes of the last change. If empty, no rollout waits for the node: it was
	// new, or the change put nothing at risk.
	By []Cause `json:"by,omitempty"`
	// Owners are the policies that set fields, by field path, such as ipvs.scheduler.
	Owners map[string]string `json:"owners,omitempty"`
}

// OverridesGrant records what policies made of a Service, in AnnotationOverrides.
// +kubebuilder:object:generate=false
type OverridesGrant struct {
	// Overrides are the effective overrides.
	Overrides ServiceOverrides `json:"overrides"`
	// Owners are the policies that set them, by field name.
	Owners map[string]string `json:"owners,omitempty"`
	// By are the causes of the last change, without changes of already rejected Services.
	By []Cause `json:"by,omitempty"`
	// Changed: the Service itself changed less than a minute before it got these overrides, or
	// afterwards but before nodes rejected it. The change may be why they reject it.
	Changed bool `json:"changed,omitempty"`
}
