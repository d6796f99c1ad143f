package render

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// reports are nodes n0, n1 and so on whose last reports have these versions; nil: none ever.
func reports(versions ...[]int32) []v1alpha1.NodeProxyRules {
	out := make([]v1alpha1.NodeProxyRules, len(versions))
	for i, v := range versions {
		out[i].ObjectMeta = metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}
		if v != nil {
			out[i].Status.Agent = &v1alpha1.AgentReport{FormatVersions: v}
		}
	}
	return out
}

func TestFormatVersion(t *testing.T) {
	one, both, all := []int32{1}, []int32{1, 2}, []int32{1, 2, 3}
	for name, c := range map[string]struct {
		writable []int32
		nodes    []v1alpha1.NodeProxyRules
		want     int32
		behind   []string
	}{
		"no nodes":                                 {writable: both, want: 2},
		"no node has reported":                     {writable: both, nodes: reports(nil, nil), want: 2},
		"all know the highest":                     {writable: both, nodes: reports(both, all), want: 2},
		"one knows less":                           {writable: both, nodes: reports(both, one, both), want: 1, behind: []string{"n1"}},
		"a node without report does not count":     {writable: both, nodes: reports(both, nil), want: 2},
		"no versions are those of the first":       {writable: both, nodes: reports(both, []int32{}), want: 1, behind: []string{"n1"}},
		"the highest that all know":                {writable: []int32{3, 1, 2}, nodes: reports(both, all), want: 2, behind: []string{"n0"}},
		"agents are ahead":                         {writable: one, nodes: reports(all, both), want: 1},
		"the first is no longer writable":          {writable: []int32{2, 3}, nodes: reports(one), want: 2, behind: []string{"n0"}},
		"a version that some know, and not others": {writable: all, nodes: reports([]int32{1, 3}, both), want: 1, behind: []string{"n1"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, behind := FormatVersion(c.writable, c.nodes)
			if got != c.want {
				t.Errorf("version %d, want %d", got, c.want)
			}
			if diff := cmp.Diff(c.behind, behind); diff != "" {
				t.Errorf("behind (-want +got):\n%s", diff)
			}
		})
	}
}
