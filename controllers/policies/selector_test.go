package policies

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestSelector(t *testing.T) {
	tests := []struct {
		selector, labels string
		selects          bool
		wrong            []string
	}{
		{selector: `{}`, labels: "", selects: true},
		{selector: `{matchLabels: {pool: edge}}`, labels: "pool=edge,a=b", selects: true},
		{selector: `{matchLabels: {pool: edge, zone: a}}`, labels: "pool=edge"},
		{selector: `{matchExpressions: [{key: pool, operator: In, values: [a, b]}]}`, labels: "pool=b", selects: true},
		{selector: `{matchExpressions: [{key: pool, operator: NotIn, values: [a, b]}]}`, labels: "", selects: true},
		{selector: `{matchExpressions: [{key: pool, operator: NotIn, values: [a, b]}]}`, labels: "pool=a"},
		{selector: `{matchExpressions: [{key: pool, operator: Exists}]}`, labels: "pool=", selects: true},
		{selector: `{matchLabels: {a: b}, matchExpressions: [{key: pool, operator: DoesNotExist}]}`, labels: "a=b,pool="},
		{selector: `{matchLabels: {"a b": c, pool: "x y"}}`, wrong: []string{
			`spec.nodeSelector.matchLabels[a b]: Invalid value: "a b": name part must consist of alphanumeric characters`,
			`spec.nodeSelector.matchLabels[pool]: Invalid value: "x y": a valid label must be an empty string or consist of`,
		}},
		{selector: `{matchExpressions: [{key: pool, operator: Near, values: [a]}]}`, wrong: []string{"nodeSelector.matchExpressions[0].operator", "Near"}},
		{selector: `{matchExpressions: [{key: pool, operator: Exists}, {key: pool, operator: In}]}`, wrong: []string{"nodeSelector.matchExpressions[1].values: Required value"}},
		{selector: `{matchExpressions: [{key: pool, operator: In, values: [a, "-b"]}]}`, wrong: []string{`nodeSelector.matchExpressions[0].values[1]: Invalid value: "-b": a valid label must be`}},
	}
	for _, tt := range tests {
		t.Run(tt.selector, func(t *testing.T) {
			var s v1alpha1.LabelSelector
			if err := yaml.UnmarshalStrict([]byte(tt.selector), &s); err != nil {
				t.Fatal(err)
			}
			got, errs := Selector(s, field.NewPath("spec", "nodeSelector"))
			for _, text := range tt.wrong {
				if len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), text) {
					t.Errorf("%v does not contain %q", errs, text)
				}
			}
			if len(tt.wrong) > 0 {
				return
			}
			set, err := labels.ConvertSelectorToLabelsMap(tt.labels)
			if err != nil || len(errs) > 0 {
				t.Fatal(err, errs)
			}
			if got.Matches(set) != tt.selects {
				t.Errorf("selects %s: %t, want %t", tt.labels, !tt.selects, tt.selects)
			}
		})
	}
}
