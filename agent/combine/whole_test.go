package combine

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestWholeRejects: what an agent would not apply is an error, and what it would ignore is left out and
// reported.
func TestWholeRejects(t *testing.T) {
	node := func(edit func(*v1alpha1.NodeProxyRulesSpec)) *v1alpha1.NodeProxyRules {
		o := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
		o.Spec.FormatVersion = v1alpha1.FormatVersion
		edit(&o.Spec)
		return o
	}
	for want, edit := range map[string]func(*v1alpha1.NodeProxyRulesSpec){
		"NodeProxyRules node-1: spec.formatVersion 0 is no format: the first is 1":                       func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 0 },
		"NodeProxyRules node-1: spec.formatVersion -3 is no format":                                      func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = -3 },
		"NodeProxyRules node-1: spec.formatVersion 99 is of a newer release (formats up to 2 are known)": func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 99 },
		"NodeProxyRules node-1: no agent applies such settings: spec.settings.mode": func(s *v1alpha1.NodeProxyRulesSpec) {
			mode := v1alpha1.ProxyMode("Magic")
			s.Settings.Mode = &mode
		},
	} {
		if _, err := Whole(node(edit), nil, dataplane.IPv4); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	object := func(name string, format int32, released bool) v1alpha1.ServiceProxyRules {
		return v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ServiceProxyRulesSpec{
			FormatVersion: format, Released: released, ClusterIPs: []string{"10.96.0.1", "10.96.0.x"},
		}}
	}
	large := object("shop.large", v1alpha1.FormatVersion, false)
	large.Spec.Ports = make([]v1alpha1.ServicePort, v1alpha1.MaxServicePorts+1)
	set, err := Whole(node(func(*v1alpha1.NodeProxyRulesSpec) {}), []v1alpha1.ServiceProxyRules{
		large,
		object("shop.a", v1alpha1.FormatVersion, false), object("shop.b", v1alpha1.FormatVersion, true),
		object("shop.c", v1alpha1.FormatVersion+1, false), object("d", v1alpha1.FormatVersion, false),
	}, dataplane.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	a := dataplane.ServiceName{Namespace: "shop", Name: "a"}
	if len(set.Services) != 1 || set.Services[a] == nil || len(set.Problems) != 1 || len(set.Problems[a]) != 1 {
		t.Errorf("Services %v, problems %q", set.Services, set.Problems)
	}
	for name, want := range map[string]string{"shop.b": "released", "shop.c": "of a newer release", "d": "not named", "shop.large": "it has 1001 ports"} {
		if !strings.Contains(set.LeftOut[name], want) {
			t.Errorf("%s: %q", name, set.LeftOut[name])
		}
	}
	if len(set.LeftOut) != 4 {
		t.Errorf("left out: %q", set.LeftOut)
	}
}
