package events

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// The name of a policy may be as long as that of an event, which is longer by a hash.
func TestEventsOfObjectsWithLongNames(t *testing.T) {
	tests := []struct {
		name, object, begins string
	}{
		{"short", "edge-ipvs", "edge-ipvs."},
		{"longest that is not cut", strings.Repeat("a", 236), strings.Repeat("a", 236) + "."},
		{"cut", strings.Repeat("a", 237), strings.Repeat("a", 236) + "."},
		{"longest", strings.Repeat("a", 253), strings.Repeat("a", 236) + "."},
		{"cut after a dot", strings.Repeat("a", 235) + "." + strings.Repeat("b", 17), strings.Repeat("a", 235) + "."},
		{"cut within dashes", strings.Repeat("a", 230) + "----------" + strings.Repeat("b", 13), strings.Repeat("a", 230) + "."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newRig(t)
			for _, uid := range []types.UID{"1", "2"} {
				p := &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: tt.object, UID: uid}}
				e.TransitionOfPolicy(p, "NodeProxyPolicy", Kind{Normal, v1alpha1.ReasonApplied, "RollOut"}, "done")
			}
			e.pass(0)
			for _, event := range e.store.events {
				if wrong := validation.IsDNS1123Subdomain(event.Name); len(wrong) > 0 {
					t.Errorf("%s: %v", event.Name, wrong)
				}
				if hash, found := strings.CutPrefix(event.Name, tt.begins); !found || len(hash) != 16 {
					t.Errorf("%s does not begin with %s, followed by a hash", event.Name, tt.begins)
				}
				if event.Regarding.Name != tt.object {
					t.Errorf("it is about %s, want %s", event.Regarding.Name, tt.object)
				}
			}
			if len(e.store.events) != 2 || e.store.events[0].Name == e.store.events[1].Name {
				t.Errorf("%d events, with the same name", len(e.store.events))
			}
		})
	}
}
