package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeProxyPolicySpec overrides settings on the nodes that it selects.
type NodeProxyPolicySpec struct {
	// priority is a number that decides where several policies that select a node
	// set the same field: the highest wins, of equal ones that of the policy with
	// the lower name, never the older one. It may be negative. Default: 0. Source:
	// people or GitOps.
	// +kubebuilder:validation:Minimum=-2147483648
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Priority *int32 `json:"priority,omitempty"`

	// nodeSelector selects nodes by the labels of their Node; {} selects all, and
	// has to be written. Source: people or GitOps.
	// +required
	NodeSelector LabelSelector `json:"nodeSelector"`

	// settings are those that the policy sets; what is absent it leaves to other
	// policies, then to NodeProxy. detectLocal and nodePorts are overridden as a
	// whole. Source: people or GitOps.
	// +required
	Settings WrittenSettings `json:"settings"`

	// rollout says how fast changes that this policy causes reach the nodes. What
	// is absent has its default, whatever NodeProxy says. When the policy is
	// deleted, or stops selecting a node, what becomes of its settings there is
	// a change, too; for a deleted policy it keeps to spec.rollout of NodeProxy.
	// Default: that of each field. Source: people or GitOps.
	// +optional
	Rollout *RolloutSettings `json:"rollout,omitempty"`
}

// NodeProxyPolicyStatus is how far a policy has come.
type NodeProxyPolicyStatus struct {
	// conditions: Ready is True when every selected node has what the policies
	// make of its settings in force, and is Programmed, or where no node is
	// selected. Accepted is False when nothing of the policy is used, and says
	// why. Overridden is True while stronger policies set fields of this one, and
	// names them. Stalled is there, and True, while the policy will not get ready
	// by itself. Source: the controller.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status is about.
	// Source: the controller.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// nodes is how many nodes the policy selects. Source: the controller.
	// +optional
	Nodes int32 `json:"nodes"`

	// updated is how many of them were given the settings that policies and
	// NodeProxy make now. Source: the controller, from NodeProxyRules.
	// +optional
	Updated int32 `json:"updated"`

	// programmed is how many of those report these settings in force and
	// Programmed True; with enforcement Audit, that they have compared. Source:
	// the controller, from the status of NodeProxyRules.
	// +optional
	Programmed int32 `json:"programmed"`

	// examples are up to ten of the selected nodes that do not count as
	// programmed, with the reason; the ones by which a rollout has stopped first.
	// Source: the controller.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Examples []NodeExample `json:"examples,omitempty"`
}

// NodeExample names a node, and what is to be said of it.
type NodeExample struct {
	// name is that of the Node. Source: the controller.
	// +required
	Name string `json:"name"`

	// reason is one word for it. Source: the controller, or the reason of the
	// node's own condition Programmed.
	// +required
	Reason string `json:"reason"`

	// message says more. Source: the controller, or the node's own condition.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// NodeProxyPolicy overrides settings of the proxy on the nodes that it selects.
// A change of it goes from node to node, and stops when one does not do well.
// +kubebuilder:object:root=true
// +kubebuilder:metadata:annotations="nodeproxy.io/schema-revision=3"
// +kubebuilder:metadata:annotations="argocd.argoproj.io/sync-options=Prune=false,Delete=false"
// +kubebuilder:metadata:annotations="kustomize.toolkit.fluxcd.io/prune=disabled"
// +kubebuilder:resource:scope=Cluster,path=nodeproxypolicies,singular=nodeproxypolicy,shortName=npp
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

	// spec is what people ask for.
	// +required
	Spec NodeProxyPolicySpec `json:"spec"`

	// status is how far it has come.
	// +optional
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
