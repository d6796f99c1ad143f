package kubeproxy

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// labelTakesOver is the label of nodes that a DaemonSet leaves during a migration.
const labelTakesOver = "nodeproxy.io/takes-over"

// onWindows reports whether pods run on Windows nodes only.
func onWindows(pod *corev1.PodSpec) bool {
	if pod.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows) || pod.OS != nil && pod.OS.Name == corev1.Windows {
		return true
	}
	terms := requiredTerms(pod)
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(term corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return e.Key == corev1.LabelOSStable && e.Operator == corev1.NodeSelectorOpIn && slices.Equal(e.Values, []string{string(corev1.Windows)})
		})
	})
}

func requiredTerms(pod *corev1.PodSpec) []corev1.NodeSelectorTerm {
	a := pod.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// selectors returns the nodes on which pods run, as selectors of which one must match: agents
// only run on Linux, so its label is left out.
func selectors(pod *corev1.PodSpec) ([]v1alpha1.LabelSelector, error) {
	labels := maps.Clone(pod.NodeSelector)
	maps.DeleteFunc(labels, func(key, value string) bool { return key == corev1.LabelOSStable && value == string(corev1.Linux) })
	terms := requiredTerms(pod)
	if len(terms) == 0 {
		return []v1alpha1.LabelSelector{{MatchLabels: labels}}, nil
	}
	var out []v1alpha1.LabelSelector
	for _, term := range terms {
		if len(term.MatchFields) > 0 {
			return nil, errors.New("its node affinity has matchFields")
		}
		selector := v1alpha1.LabelSelector{MatchLabels: labels}
		for _, e := range term.MatchExpressions {
			switch e.Operator {
			case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
			default:
				return nil, fmt.Errorf("its node affinity has operator %q", e.Operator)
			}
			if len(e.Values) > mostValues {
				return nil, fmt.Errorf("its node affinity has more than %d values", mostValues)
			}
			if e.Key == labelTakesOver || e.Key == corev1.LabelOSStable && slices.Equal(e.Values, []string{string(corev1.Linux)}) {
				continue
			}
			selector.MatchExpressions = append(selector.MatchExpressions, v1alpha1.LabelSelectorRequirement{
				Key: e.Key, Operator: v1alpha1.LabelSelectorOperator(e.Operator), Values: e.Values,
			})
		}
		out = append(out, selector)
	}
	return out, nil
}

// mostValues is how many values the API permits in a requirement.
const mostValues = 32

// named returns selectors of nodes by their host names.
func named(hostnames []string) []v1alpha1.LabelSelector {
	var out []v1alpha1.LabelSelector
	for part := range slices.Chunk(slices.Sorted(slices.Values(hostnames)), mostValues) {
		out = append(out, v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: v1alpha1.SelectorIn, Values: part},
		}})
	}
	return out
}
