package nodesettings

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
)

func TestGrantsSurviveTheirAnnotation(t *testing.T) {
	r := policies.NewNodes(nil, nil).Resolve(nil)
	r.Owners["mode"] = "edge"
	rules := &v1alpha1.NodeProxyRules{}
	grant := NewGrant(r, []v1alpha1.Cause{{Name: "edge", Generation: 7}, {Name: policies.Base, Generation: 3}}, controllertest.Noon)
	if err := SetGrant(rules, grant); err != nil {
		t.Fatal(err)
	}
	got, by := GrantOf(rules), []v1alpha1.Cause{{Name: "edge", Generation: 7}, {Name: policies.Base, Generation: 3}}
	if !got.Time.Time.Equal(controllertest.Noon) || got.Revision != r.Settings.Revision || !slices.Equal(got.By, by) || !maps.Equal(got.Owners, map[string]string{"mode": "edge"}) {
		t.Errorf("%+v", got)
	}
	if text := rules.Annotations[v1alpha1.AnnotationRollout]; !json.Valid([]byte(text)) || !strings.Contains(text, "2026-11-20T12:00:00Z") {
		t.Error(text)
	}
}
