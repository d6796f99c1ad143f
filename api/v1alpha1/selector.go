package v1alpha1

// LabelSelector selects objects by label: all requirements must match, and an empty selector
// matches everything.
type LabelSelector struct {
	// matchLabels are labels that an object must have, with these values. Default: none.
	// Source: user.
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
	// SelectorIn: the label has one of the values.
	SelectorIn LabelSelectorOperator = "In"
	// SelectorNotIn: the label has none of the values, or is absent.
	SelectorNotIn LabelSelectorOperator = "NotIn"
	// SelectorExists: the label is present.
	SelectorExists LabelSelectorOperator = "Exists"
	// SelectorDoesNotExist: the label is absent.
	SelectorDoesNotExist LabelSelectorOperator = "DoesNotExist"
)
