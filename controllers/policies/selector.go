package policies

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Selector parses a selector at a path. The API denies most mistakes itself; this finds the others,
// such as an impossible label in matchLabels.
func Selector(s v1alpha1.LabelSelector, at *field.Path) (labels.Selector, field.ErrorList) {
	var errs field.ErrorList
	var all []labels.Requirement
	add := func(at *field.Path, key string, op selection.Operator, values []string) {
		if wrong := wrongLabel(at, key, values); len(wrong) > 0 {
			errs = append(errs, wrong...)
			return
		}
		r, err := labels.NewRequirement(key, op, values)
		if err != nil {
			errs = append(errs, field.Invalid(at, key, err.Error()))
			return
		}
		all = append(all, *r)
	}
	for key, value := range s.MatchLabels {
		add(at.Child("matchLabels").Key(key), key, selection.Equals, []string{value})
	}
	operators := map[v1alpha1.LabelSelectorOperator]selection.Operator{
		v1alpha1.SelectorIn: selection.In, v1alpha1.SelectorNotIn: selection.NotIn,
		v1alpha1.SelectorExists: selection.Exists, v1alpha1.SelectorDoesNotExist: selection.DoesNotExist,
	}
	for i, e := range s.MatchExpressions {
		op, known := operators[e.Operator]
		at := at.Child("matchExpressions").Index(i)
		if !known {
			errs = append(errs, field.NotSupported(at.Child("operator"), e.Operator,
				[]v1alpha1.LabelSelectorOperator{v1alpha1.SelectorIn, v1alpha1.SelectorNotIn, v1alpha1.SelectorExists, v1alpha1.SelectorDoesNotExist}))
			continue
		}
		add(at, e.Key, op, e.Values)
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b *field.Error) int { return cmp.Compare(a.Field, b.Field) })
		return nil, errs
	}
	return labels.NewSelector().Add(all...), nil
}

// wrongLabel says what cannot be the key, or a value, of a label.
func wrongLabel(at *field.Path, key string, values []string) field.ErrorList {
	var errs field.ErrorList
	for _, text := range validation.IsQualifiedName(key) {
		errs = append(errs, field.Invalid(at, key, "cannot be the key of a label: "+text))
	}
	for _, value := range values {
		for _, text := range validation.IsValidLabelValue(value) {
			errs = append(errs, field.Invalid(at, value, "cannot be the value of a label: "+text))
		}
	}
	return errs
}
