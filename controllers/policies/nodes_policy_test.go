package policies

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestNodePolicyOf(t *testing.T) {
	for _, tt := range []struct {
		spec     string
		wrong    []string // fields
		priority int32
	}{
		{spec: `{nodeSelector: {}, settings: {mode: IPVS}}`},
		{spec: `{priority: -7, nodeSelector: {}, settings: {mode: IPVS}}`, priority: -7},
		{spec: `{nodeSelector: {}, settings: {sync: {minIntervalMilliseconds: 90000}}}`}, // longer than the default of the other
		{spec: `{nodeSelector: {}, settings: {sync: {verifyIntervalSeconds: 5}}}`},
		{
			spec:  `{nodeSelector: {}, settings: {sync: {verifyIntervalSeconds: 5, minIntervalMilliseconds: 6000}}}`,
			wrong: []string{"spec.settings.sync.verifyIntervalSeconds"},
		},
		{spec: `{nodeSelector: {}, settings: {ipvs: {scheduler: fastest}}}`, wrong: []string{"spec.settings.ipvs.scheduler"}},
		{spec: `{nodeSelector: {}, settings: {ipvs: {excludeCIDRs: [10.0.0.0/40]}}}`, wrong: []string{"spec.settings.ipvs.excludeCIDRs[0]"}},
		{spec: `{nodeSelector: {}, settings: {detectLocal: {mode: ClusterCIDR}}}`, wrong: []string{"spec.settings.detectLocal.clusterCIDRs"}},
		{
			spec:  `{nodeSelector: {matchLabels: {"a b": c}}, settings: {masquerade: {bit: 40}}}`,
			wrong: []string{"spec.nodeSelector.matchLabels[a b]", "spec.settings.masquerade.bit"},
		},
	} {
		t.Run(tt.spec, func(t *testing.T) {
			p := &v1alpha1.NodeProxyPolicy{}
			p.Name = "edge"
			if err := yaml.UnmarshalStrict([]byte(tt.spec), &p.Spec); err != nil {
				t.Fatal(err)
			}
			read, errs := NodePolicyOf(p)
			var fields []string
			for _, err := range errs {
				fields = append(fields, err.Field)
			}
			if strings.Join(fields, " ") != strings.Join(tt.wrong, " ") {
				t.Errorf("wrong are %q, want %q", fields, tt.wrong)
			}
			if read.Name != "edge" || read.Priority != tt.priority || len(tt.wrong) == 0 && !read.Selector.Matches(labels.Set{}) {
				t.Errorf("%+v", read)
			}
		})
	}
}
