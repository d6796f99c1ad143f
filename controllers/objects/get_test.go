package objects

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestMayCreate: once NodeProxy is gone with all that was rendered, a cache that lags must
// not bring any of it back.
func TestMayCreate(t *testing.T) {
	scheme, err := NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	holding := func(objects ...client.Object) client.Reader {
		return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	}
	rules := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	cleanUp := v1alpha1.RemovalCleanup
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	removed := np.DeepCopy()
	removed.Spec.RemovalPolicy = &cleanUp
	removed.Finalizers = []string{v1alpha1.FinalizerCleanup}
	removed.DeletionTimestamp = new(metav1.Now())
	for name, c := range map[string]struct {
		cached, live client.Reader
		on, may      bool
	}{
		"never switched on":           {cached: holding(), live: holding()},
		"switched on":                 {cached: holding(np), live: holding(np), on: true, may: true},
		"being removed":               {cached: holding(removed, rules), live: holding(removed, rules)},
		"removed, and the cache lags": {cached: holding(rules), live: holding(), on: true},
		"removed, and rules remain":   {cached: holding(rules), live: holding(rules), on: true, may: true},
	} {
		t.Run(name, func(t *testing.T) {
			on, err := SwitchedOn(t.Context(), c.cached)
			if err != nil || on != c.on {
				t.Errorf("switched on: %v, %v; want %v", on, err, c.on)
			}
			may, err := MayCreate(t.Context(), c.cached, c.live)
			if err != nil || may != c.may {
				t.Errorf("may create: %v, %v; want %v", may, err, c.may)
			}
		})
	}
}
