package iptables

import (
	"slices"
	"strings"
	"testing"
)

// TestDeclarationNamesAllChains: the mode declares the chains that it writes.
func TestDeclarationNamesAllChains(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(3)...)
	f.apply()
	names := Declaration().Owns.Chains
	used := 0
	for _, id := range f.kernel.chains() {
		name := id.table + "/" + id.name
		owned := slices.ContainsFunc(names, func(d string) bool {
			prefix, all := strings.CutSuffix(d, "*")
			return d == name || all && strings.HasPrefix(name, prefix)
		})
		// The kubelet shares KUBE-FIREWALL.
		ours := strings.HasPrefix(id.name, "KUBE-") && id.name != chainFirewall
		if owned != ours || owned != declared.own.has(id) {
			t.Errorf("chain %s: ours %t, declared %t, read as declared %t", name, ours, owned, declared.own.has(id))
		}
		if owned {
			used++
		}
	}
	if used < 9 {
		t.Errorf("%d chains are in use", used)
	}
}
