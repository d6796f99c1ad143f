package desired

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestLocalEndpointsOverALimit: nothing is made of them, and those before stay.
func TestLocalEndpointsOverALimit(t *testing.T) {
	r := running(t)
	of := func(namespace, name string, endpoints ...string) v1alpha1.ServiceLocalEndpoints {
		return v1alpha1.ServiceLocalEndpoints{Namespace: namespace, Name: name, Ports: []v1alpha1.PortLocalEndpoints{{Name: "http", Protocol: "TCP", Endpoints: endpoints}}}
	}
	crowd := func(bytes int) []string {
		const one = len(`"10.244.1.1:8080",`)
		return slices.Repeat([]string{"10.244.1.1:8080"}, bytes/one)
	}
	set := func(local ...v1alpha1.ServiceLocalEndpoints) {
		r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.LocalEndpoints = local }))
	}
	set(of("shop", "a", "10.244.1.1:8080"))
	r.expectSync("partial a")
	set(of("shop", "a"), of("shop", "b", crowd(v1alpha1.MaxNamespaceLocalBytes)...))
	r.expectSync("nothing")
	const want = `the local endpoints of 1 namespace, such as "shop", exceed the limit of 131072 bytes for one or 983040 for all: the previous ones are used`
	if s := r.Snapshot(); s.Local != 1 || !slices.Equal(s.Warnings, []string{want}) {
		t.Errorf("%d local endpoints, warnings %q", s.Local, s.Warnings)
	}
	var all []v1alpha1.ServiceLocalEndpoints
	for i := range v1alpha1.MaxNodeLocalBytes/v1alpha1.MaxNamespaceLocalBytes + 1 { // each within its own
		all = append(all, of(fmt.Sprintf("other-%d", i), "a", crowd(v1alpha1.MaxNamespaceLocalBytes-200)...))
	}
	set(append(all, of("shop", "b", "10.244.1.2:8080"))...)
	r.expectSync("partial a b")
	if s := r.Snapshot(); s.Local != 1 || len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], `such as "other-7"`) {
		t.Errorf("%d local endpoints, warnings %q", s.Local, s.Warnings)
	}
	set(of("shop", "b", "10.244.1.2:8080"))
	r.expectSync("nothing")
	if s := r.Snapshot(); len(s.Warnings) > 0 {
		t.Errorf("warnings %q", s.Warnings)
	}
}
