package policies

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHaltOf(t *testing.T) {
	changed := func(namespace string) RejectedChange { return RejectedChange{Namespace: namespace, Changed: true} }
	same := func(namespace string) RejectedChange { return RejectedChange{Namespace: namespace} }
	one := Halt{Namespaces: []string{"shop"}}
	for _, tt := range []struct {
		name       string
		rejected   []RejectedChange
		want       Halt
		shop, bank bool // who waits
	}{
		{name: "nothing is rejected"},
		{name: "a Service that has not changed itself", rejected: []RejectedChange{same("shop")}, want: Halt{All: true}, shop: true, bank: true},
		{name: "a Service that has changed itself", rejected: []RejectedChange{changed("shop")}, want: one, shop: true},
		{name: "many of one namespace", rejected: []RejectedChange{changed("shop"), changed("shop"), changed("shop")}, want: one, shop: true},
		{name: "of two namespaces", rejected: []RejectedChange{changed("shop"), changed("bank")}, want: Halt{Namespaces: []string{"bank", "shop"}}, shop: true, bank: true},
		{name: "one of each kind", rejected: []RejectedChange{changed("shop"), same("bank")}, want: Halt{All: true}, shop: true, bank: true},
		{name: "one of each kind in one namespace", rejected: []RejectedChange{changed("shop"), same("shop")}, want: Halt{All: true}, shop: true, bank: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := HaltOf(tt.rejected)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got.Applies("shop") != tt.shop || got.Applies("bank") != tt.bank {
				t.Errorf("shop waits: %t, bank waits: %t", got.Applies("shop"), got.Applies("bank"))
			}
		})
	}
}
