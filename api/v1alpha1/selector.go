package v1alpha1

// LabelSelector selects objects by their labels, as the selectors of Kubernetes
// do: everything in it has to hold, and an empty one selects all. It is a type of
// its own for the sake of its bounds and messages.
type LabelSelector struct {
	// matchLabels are labels that an object must have, with these values. Default
	// (absent): none. Source: people or GitOps.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	MatchLabels map[string]string `json:"matchLabels,omitempty"`

	// matchExpressions are demands on labels. Default (absent): none. Source:
	// people or GitOps.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelSelectorRequirement is a demand on one label.
// +kubebuilder:validation:XValidation:fieldPath=".values",rule=`!(self.operator in ['In', 'NotIn']) || has(self.values) && self.values.size() > 0`,message=`values must not be empty with the operators In and NotIn`
// +kubebuilder:validation:XValidation:fieldPath=".values",rule=`self.operator in ['In', 'NotIn'] || !has(self.values) || self.values.size() == 0`,message=`values are only for the operators In and NotIn: leave them out`
type LabelSelectorRequirement struct {
	// key is that of the label. Source: people or GitOps.
	// +required
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule=`self.matches('^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')`,message=`key must be that of a label, such as pool or topology.kubernetes.io/zone`
	Key string `json:"key"`

	// operator is In, NotIn (the label has one, or none, of values, or is not
	// there), Exists or DoesNotExist. Source: people or GitOps.
	// +required
	Operator LabelSelectorOperator `json:"operator"`

	// values are those of In and NotIn. Default (absent): none. Source: people or
	// GitOps.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.all(v, v.matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$'))`,message=`values must be those of labels: letters, digits, - _ and . inside`
	Values []string `json:"values,omitempty"`
}

// LabelSelectorOperator relates a label to values.
// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
type LabelSelectorOperator string

// Operators of label selectors.
const (
	// SelectorIn: the label has one of the values.
	SelectorIn LabelSelectorOperator = "In"
	// SelectorNotIn: the label has none of the values, or is not there.
	SelectorNotIn LabelSelectorOperator = "NotIn"
	// SelectorExists: the label is there.
	SelectorExists LabelSelectorOperator = "Exists"
	// SelectorDoesNotExist: the label is not there.
	SelectorDoesNotExist LabelSelectorOperator = "DoesNotExist"
)
