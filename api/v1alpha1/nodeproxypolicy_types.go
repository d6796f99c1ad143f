package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NodeProxyPolicySpec overrides settings on the selected nodes.
type NodeProxyPolicySpec struct {
	// priority is the number that ranks policies that set the same field on a node: the highest
	// wins; ties go to the lower name. It may be negative. Default: 0. Source: user.
	// +kubebuilder:validation:Minimum=-2147483648
	// +kubebuilder:validation:Maximum=2147483647
	// +optional
	Priority *int32 `json:"priority,omitempty"`

	// nodeSelector selects nodes by label; {} selects all and must be explicit. Source: user.
	// +required
	NodeSelector LabelSelector `json:"nodeSelector"`

	// settings are the overrides. Absent fields come from other policies, then from NodeProxy.
	// detectLocal and nodePorts are overridden as a whole. Source: user.
	// +required
	Settings WrittenSettings `json:"settings"`

	// rollout controls how fast changes of this policy reach the nodes, including those that it
	// no longer selects. Absent fields have their documented default, not NodeProxy's value.
	// After the policy's deletion, spec.rollout of NodeProxy applies. Source: user.
	// +optional
	Rollout *RolloutSettings `json:"rollout,omitempty"`
}

// RolloutSettings control how fast a change of settings reaches the nodes.
type RolloutSettings struct {
	// maxUnavailable is how many nodes may be unavailable (settings not applied, or not
	// Programmed) while the change proceeds: a number of nodes, or a percentage of the nodes
	// that the object selects, such as "10%", rounded down, at least one. Default: 1. Source:
	// user.
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

	// paused, if true, keeps further nodes from getting the change. Default: false. Source: user.
	// +optional
	Paused *bool `json:"paused,omitempty"`
}

// LabelSelector selects objects that meet all requirements; an empty one matches everything.
type LabelSelector struct {
	// matchLabels are labels that an object must have. Default: none. Source: user.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	MatchLabels map[string]string `json:"matchLabels,omitempty"`

	// matchExpressions are label requirements. Default: none. Source: user.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelSelectorRequirement is a requirement on one label.
// +kubebuilder:validation:XValidation:fieldPath=".values",rule=`!(self.operator in ['In', 'NotIn']) || has(self.values) && self.values.size() > 0`,message=`values is required with operator In or NotIn`
// +kubebuilder:validation:XValidation:fieldPath=".values",rule=`self.operator in ['In', 'NotIn'] || !has(self.values) || self.values.size() == 0`,message=`values is only valid with operator In or NotIn: remove it`
type LabelSelectorRequirement struct {
	// key is the label key. Source: user.
	// +required
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule=`self.matches('^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')`,message=`key must be a label key, such as pool or topology.kubernetes.io/zone`
	Key string `json:"key"`

	// operator is In (the label has one of the values), NotIn (it has none of them, or is
	// absent), Exists or DoesNotExist. Source: user.
	// +required
	Operator LabelSelectorOperator `json:"operator"`

	// values are the values for In and NotIn. Default: none. Source: user.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.all(v, v.matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$'))`,message=`values must be label values: letters and digits, with - _ . in between`
	Values []string `json:"values,omitempty"`
}

// LabelSelectorOperator relates a label to values.
// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
type LabelSelectorOperator string

// Operators of label selectors.
const (
	SelectorIn           LabelSelectorOperator = "In"
	SelectorNotIn        LabelSelectorOperator = "NotIn"
	SelectorExists       LabelSelectorOperator = "Exists"
	SelectorDoesNotExist LabelSelectorOperator = "DoesNotExist"
)

// NodeProxyPolicyStatus is the progress of a policy.
type NodeProxyPolicyStatus struct {
	// conditions: Ready is True if all selected nodes have applied the settings that result
	// from all policies and are Programmed, or if no node is selected. Accepted is False if the
	// policy is ignored; the message explains why. Overridden is True while stronger policies,
	// named in the message, set fields of this one. While Ready is not True, either Stalled is,
	// which takes intervention, or Reconciling; neither is while paused. Source: controller.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the metadata.generation that this status describes, or -1 if the
	// controller has not seen the object. Source: controller.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// nodes is the number of selected nodes. Source: controller.
	// +optional
	Nodes int32 `json:"nodes"`

	// updated is the number of them that were given their current settings. Source: controller.
	// +optional
	Updated int32 `json:"updated"`

	// programmed is the number of updated nodes that report these settings as applied and
	// Programmed True (Audit: that have compared). Source: controller.
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

	// reason is a CamelCase word, possibly the node's reason of Programmed. Source: controller.
	// +required
	Reason string `json:"reason"`

	// message explains the reason. Source: controller.
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
	Items           []NodeProxyPolicy `json:"items"`
}
