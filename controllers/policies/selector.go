package policies

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Selector parses a selector at a path. The API denies most mistakes itself; this finds the others,
// such as an impossible label in matchLabels.
func Selector(s v1alpha1.LabelSelector, at *field.Path) (labels.Selector, field.ErrorList) {
	var errs field.ErrorList
	all := &metav1.LabelSelector{MatchLabels: s.MatchLabels}
	for key, value := range s.MatchLabels {
		errs = append(errs, validation.ValidateLabels(map[string]string{key: value}, at.Child("matchLabels").Key(key))...)
	}
	for i, e := range s.MatchExpressions {
		r := metav1.LabelSelectorRequirement{Key: e.Key, Operator: metav1.LabelSelectorOperator(e.Operator), Values: e.Values}
		all.MatchExpressions = append(all.MatchExpressions, r)
		errs = append(errs, validation.ValidateLabelSelectorRequirement(r, validation.LabelSelectorValidationOptions{}, at.Child("matchExpressions").Index(i))...)
	}
	selector, err := metav1.LabelSelectorAsSelector(all)
	if err != nil && len(errs) == 0 {
		errs = append(errs, field.Invalid(at, s, err.Error()))
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b *field.Error) int { return cmp.Compare(a.Field, b.Field) })
		return nil, errs
	}
	return selector, nil
}
