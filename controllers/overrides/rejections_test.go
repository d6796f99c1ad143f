package overrides

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
)

// shapedStock has rules of Services that a policy has shaped, and a node that rejects
// Services.
type shapedStock struct {
	controllertest.Stocked
	rules map[string]*v1alpha1.ServiceProxyRules
	node  v1alpha1.NodeProxyRules
}

// Get implements client.Reader.
func (s *shapedStock) Get(ctx context.Context, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
	if rules, ok := into.(*v1alpha1.ServiceProxyRules); ok && s.rules[key.Name] != nil {
		*rules = *s.rules[key.Name]
		return nil
	}
	return s.Stocked.Get(ctx, key, into, o...)
}

// List implements client.Reader.
func (s *shapedStock) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if nodes, ok := list.(*v1alpha1.NodeProxyRulesList); ok {
		nodes.Items = []v1alpha1.NodeProxyRules{s.node}
	}
	return nil
}

// give stores the rules of a Service that a policy has shaped.
func (s *shapedStock) give(namespace, name, annotation string) {
	s.rules[v1alpha1.ServiceProxyRulesName(namespace, name)] = &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{v1alpha1.AnnotationOverrides: annotation},
	}}
}

const (
	shapedAlone   = `{"overrides":{},"by":[{"name":"p","generation":3}]}`
	shapedChanged = `{"overrides":{},"by":[{"name":"p","generation":3}],"changed":true}`
)

func TestHaltByStoredRules(t *testing.T) {
	stock := &shapedStock{rules: map[string]*v1alpha1.ServiceProxyRules{}}
	stock.give("shop", "cart", shapedChanged)
	stock.give("shop", "alone", shapedAlone)
	stock.give("bank", "teller", shapedChanged)
	stock.give("bank", "odd", "{")
	o := New(stock, clock.RealClock{})
	for _, tt := range []struct {
		name, rejected string
		generation     int64
		want           policies.Halt
	}{
		{"one that has changed", "shop/cart", 3, policies.Halt{Namespaces: []string{"shop"}}},
		{"one that has not", "shop/alone", 3, policies.Halt{All: true}},
		{"by another generation", "shop/alone", 4, policies.Halt{}},
		{"without rules", "shop/gone", 3, policies.Halt{}},
		{"with an invalid annotation", "bank/odd", 3, policies.Halt{}},
	} {
		rejected := map[types.NamespacedName]Rejection{}
		for key := range rejectedOn(&v1alpha1.NodeProxyRules{Status: v1alpha1.NodeProxyRulesStatus{
			Rejected: &v1alpha1.RejectedServices{Count: 1, Examples: []string{tt.rejected + ": IPv4: no"}},
		}}) {
			rejected[key] = Rejection{}
		}
		got := o.haltOf(t.Context(), rejected, v1alpha1.Cause{Name: "p", Generation: tt.generation})
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	both := map[types.NamespacedName]Rejection{{Namespace: "shop", Name: "cart"}: {}, {Namespace: "bank", Name: "teller"}: {}}
	want := policies.Halt{Namespaces: []string{"bank", "shop"}}
	if diff := cmp.Diff(want, o.haltOf(t.Context(), both, v1alpha1.Cause{Name: "p", Generation: 3})); diff != "" {
		t.Errorf("in two namespaces (-want +got):\n%s", diff)
	}
}

// TestContestedAddressIsNoRejection: any other Service can cause it.
func TestContestedAddressIsNoRejection(t *testing.T) {
	rules := &v1alpha1.NodeProxyRules{Status: v1alpha1.NodeProxyRulesStatus{Rejected: &v1alpha1.RejectedServices{Count: 2, Examples: []string{
		"shop/cart: IPv4: 192.168.0.2:30080/TCP is served for Service bank/teller already; one of the two must give up the address or the port",
		"shop/till: IPv4: virtual server 10.0.0.2:80/TCP: no space left on device",
	}}}}
	want := map[types.NamespacedName]string{{Namespace: "shop", Name: "till"}: "IPv4: virtual server 10.0.0.2:80/TCP: no space left on device"}
	if diff := cmp.Diff(want, rejectedOn(rules)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestChangedToo: a Service that changes once nodes reject it clears no policy.
func TestChangedToo(t *testing.T) {
	stock := &shapedStock{rules: map[string]*v1alpha1.ServiceProxyRules{}}
	stock.node.Status.Rejected = &v1alpha1.RejectedServices{Count: 1, Examples: []string{"shop/rejected: IPv4: no"}}
	o := New(stock, clock.RealClock{})
	for _, tt := range []struct{ name, service, before, after string }{
		{"no node rejects it", "cart", shapedAlone, shapedChanged},
		{"it has changed before", "cart", shapedChanged, shapedChanged},
		{"nodes reject it already", "rejected", shapedAlone, shapedAlone},
		{"no policy is responsible", "cart", `{"overrides":{}}`, `{"overrides":{}}`},
		{"an invalid annotation", "cart", "{", "{"},
	} {
		after, err := o.ChangedToo(t.Context(), types.NamespacedName{Namespace: "shop", Name: tt.service}, tt.before)
		if err != nil || after != tt.after {
			t.Errorf("%s: %s, %v", tt.name, after, err)
		}
	}
}
