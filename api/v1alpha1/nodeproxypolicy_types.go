package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeProxyPolicySpec overrides settings on the selected nodes.
type NodeProxyPolicySpec struct {
	// priority is the number that ranks policies that set the same field on a node: the
	// highest wins; ties are broken by the lower name, never by age. It may be negative.
	// Default: 0. Source: user.
	// +kubebuilder:validation:Minimum=-2147483648
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Priority *int32 `json:"priority,omitempty"`

	// nodeSelector selects nodes by their Node's labels; {} selects all and must be explicit.
	// Source: user.
	// +required
	NodeSelector LabelSelector `json:"nodeSelector"`

	// settings are the overrides. Absent fields come from other policies, then from NodeProxy.
	// detectLocal and nodePorts are overridden as a whole. Source: user.
	// +required
	Settings WrittenSettings `json:"settings"`

	// rollout controls how fast changes of this policy reach the nodes, including when it
	// stops selecting one. Absent fields have their documented default, not NodeProxy's value.
	// After the policy's deletion, spec.rollout of NodeProxy applies. Source: user.
	// +optional
	Rollout *RolloutSettings `json:"rollout,omitempty"`
}

// NodeProxyPolicyStatus is the progress of a policy.
type NodeProxyPolicyStatus struct {
	// conditions: Ready is True if all selected nodes have applied the settings that result
	// from all policies and are Programmed, or if no node is selected. Accepted is False if
	// the policy is not used at all; the message says why. Overridden is True while stronger
	// policies, named in the message, set fields of this one. Stalled is present, and True,
	// while Ready cannot become True without intervention. Source: controller.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status describes; -1 until the
	// controller has seen the object. Source: controller.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// nodes is the number of selected nodes. Source: controller.
	// +optional
	Nodes int32 `json:"nodes"`

	// updated is the number of them whose NodeProxyRules have the settings that now result
	// from policies and NodeProxy. Source: controller.
	// +optional
	Updated int32 `json:"updated"`

	// programmed is the number of updated nodes that report these settings as applied and
	// Programmed True; with enforcement Audit, that they have compared. Source: controller,
	// from NodeProxyRules.
	// +optional
	Programmed int32 `json:"programmed"`

	// examples are up to ten selected nodes that are not counted as programmed, those that
	// halted a rollout first. Source: controller.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Examples []NodeExample `json:"examples,omitempty"`
}

// NodeExample is a node and why it is listed.
type NodeExample struct {
	// name of the Node. Source: controller.
	// +required
	Name string `json:"name"`

	// reason is a CamelCase word. Source: controller, or the node's condition Programmed.
	// +required
	Reason string `json:"reason"`

	// message is the human-readable explanation. Source: controller, or the node's condition
	// Programmed.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// NodeProxyPolicy overrides proxy settings on the selected nodes. Staged rollout: a change
// goes node by node and halts if a node becomes unhealthy.
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="nodeproxy.io/schema-revision=3"
// +kubebuilder:metadata:annotations="argocd.argoproj.io/sync-options=Prune=false,Delete=false"
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:scope=Cluster,path=nodeproxypolicies,singular=nodeproxypolicy,shortName=npp,categories=nodeproxy-all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Updated",type=integer,JSONPath=`.status.updated`
// +kubebuilder:printcolumn:name="Programmed",type=integer,JSONPath=`.status.programmed`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeProxyPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired configuration.
	// +required
	Spec NodeProxyPolicySpec `json:"spec"`

	// status is the progress of the policy.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status NodeProxyPolicyStatus `json:"status,omitzero"`
}

// NodeProxyPolicyList is a list of NodeProxyPolicy.
// +kubebuilder:object:root=true
type NodeProxyPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the objects.
	Items []NodeProxyPolicy `json:"items"`
}
