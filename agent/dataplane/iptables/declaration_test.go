package iptables

import (
	"slices"
	"strings"
	"testing"
)

// TestDeclarationNamesAllChains: what the mode writes is what it says it owns.
func TestDeclarationNamesAllChains(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(3)...)
	f.apply()
	declared := Declaration().Owns.Chains
	used := 0
	for _, id := range f.kernel.chains() {
		name := id.table.String() + "/" + id.name
		owned := slices.ContainsFunc(declared, func(d string) bool {
			prefix, all := strings.CutSuffix(d, "*")
			return d == name || all && strings.HasPrefix(name, prefix)
		})
		if owned != isOurs(id) {
			t.Errorf("chain %s: declared %t, owned %t", name, owned, isOurs(id))
		}
		if owned {
			used++
		}
	}
	if used < 9 {
		t.Errorf("%d chains are in use", used)
	}
}
