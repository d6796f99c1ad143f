package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Cause is an object by which something changes, in the generation that does.
// +kubebuilder:object:generate=false
type Cause struct {
	// Name is that of a policy. Empty: NodeProxy.
	Name string `json:"name,omitempty"`
	// Generation is its metadata.generation.
	Generation int64 `json:"generation"`
}

// SettingsGrant says of the settings in a NodeProxyRules when and why the node was
// given them. It is in AnnotationRollout.
// +kubebuilder:object:generate=false
type SettingsGrant struct {
	// Time is when.
	Time metav1.Time `json:"time"`
	// Revision is the settingsRevision that was given.
	Revision string `json:"revision"`
	// By are the causes of the last change. None are waited for: the node was new, or
	// nothing was at risk there.
	By []Cause `json:"by,omitempty"`
	// Owners are the policies that set fields of these settings, by the field's path,
	// such as ipvs.scheduler.
	Owners map[string]string `json:"owners,omitempty"`
}

// OverridesGrant says of a ServiceProxyRules what policies have made of its
// Service. It is in AnnotationOverrides.
// +kubebuilder:object:generate=false
type OverridesGrant struct {
	// Overrides are those in force.
	Overrides ServiceOverrides `json:"overrides"`
	// Owners are the names of the policies that set them, by the name of the field.
	Owners map[string]string `json:"owners,omitempty"`
	// By are the causes of the last change, but for those of changes of a Service that
	// nodes refused already.
	By []Cause `json:"by,omitempty"`
	// Changed: the Service itself changed less than a minute before it was given these
	// overrides, or has changed since, before nodes refused it. A refusal may be due to
	// that.
	Changed bool `json:"changed,omitempty"`
}
