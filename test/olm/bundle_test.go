package olm

import (
	"path/filepath"
	"slices"
	"testing"
)

// The bundle of this repository has all that an installation needs.
func TestRead(t *testing.T) {
	b, err := Read(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	strategy := b.csv.Spec.Install.Spec
	var accounts []string
	for _, p := range slices.Concat(strategy.ClusterPermissions, strategy.Permissions) {
		accounts = append(accounts, p.ServiceAccountName)
		if len(p.Rules) == 0 {
			t.Errorf("%s has no rules", p.ServiceAccountName)
		}
	}
	want := []string{"nodeproxy-agent", "nodeproxy-controller", "nodeproxy-agent", "nodeproxy-controller"}
	if !slices.Equal(accounts, want) || len(strategy.Deployments) != 1 || len(b.CRDs()) != 5 || len(b.beside) == 0 {
		t.Errorf("accounts %q, %d Deployments, CRDs %q, %d objects beside", accounts, len(strategy.Deployments), b.CRDs(), len(b.beside))
	}
	if _, err := Read(t.TempDir()); err == nil {
		t.Error("an empty directory is a bundle")
	}
}
