package summary

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// knownServices are some of which something is known.
type knownServices struct {
	services
	delayed []types.NamespacedName
}

func (s knownServices) Delayed() []types.NamespacedName { return s.delayed }

// TestInventory: a Service that is delayed or unrendered is in the inventory only if it has rules.
func TestInventory(t *testing.T) {
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "shop", Name: name} }
	eligible := map[types.NamespacedName]bool{}
	var rules []client.Object
	for name, stored := range map[string]bool{"vanished": false, "delayed": false, "unrendered": false, "delayed-before": true, "unrendered-before": true} {
		eligible[key(name)] = true
		if stored {
			rules = append(rules, &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: objects.RulesName(key(name))}})
		}
	}
	r := &Reconciler{
		Client:   fake.NewClientBuilder().WithScheme(scheme).WithObjects(rules...).Build(),
		Services: knownServices{delayed: []types.NamespacedName{key("delayed"), key("delayed-before")}},
	}
	unrendered := []v1alpha1.UnrenderedService{{Namespace: "shop", Name: "unrendered"}, {Namespace: "shop", Name: "unrendered-before"}}
	got, err := r.inventory(t.Context(), eligible, unrendered)
	if want := render.Inventory([]string{"shop.vanished", "shop.delayed-before", "shop.unrendered-before"}); err != nil || *got != want {
		t.Errorf("%+v (%v), want %+v", got, err, want)
	}
}
