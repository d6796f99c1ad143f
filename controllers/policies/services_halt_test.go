package policies

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHaltOf(t *testing.T) {
	changed := func(namespace string) RefusedChange { return RefusedChange{Namespace: namespace, Changed: true} }
	same := func(namespace string) RefusedChange { return RefusedChange{Namespace: namespace} }
	one := Halt{Namespaces: []string{"shop"}}
	for _, tt := range []struct {
		name       string
		refused    []RefusedChange
		want       Halt
		shop, bank bool // who waits
	}{
		{name: "nothing is refused"},
		{name: "a Service that has not changed itself", refused: []RefusedChange{same("shop")}, want: Halt{All: true}, shop: true, bank: true},
		{name: "a Service that has changed itself", refused: []RefusedChange{changed("shop")}, want: one, shop: true},
		{name: "many of one namespace", refused: []RefusedChange{changed("shop"), changed("shop"), changed("shop")}, want: one, shop: true},
		{name: "of two namespaces", refused: []RefusedChange{changed("shop"), changed("bank")}, want: Halt{Namespaces: []string{"bank", "shop"}}, shop: true, bank: true},
		{name: "one of each kind", refused: []RefusedChange{changed("shop"), same("bank")}, want: Halt{All: true}, shop: true, bank: true},
		{name: "one of each kind in one namespace", refused: []RefusedChange{changed("shop"), same("shop")}, want: Halt{All: true}, shop: true, bank: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := HaltOf(tt.refused)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got.Holds("shop") != tt.shop || got.Holds("bank") != tt.bank {
				t.Errorf("shop waits: %t, bank waits: %t", got.Holds("shop"), got.Holds("bank"))
			}
		})
	}
}
