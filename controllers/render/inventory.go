package render

import "github.com/nodeproxy-io/nodeproxy/api/v1alpha1"

// Inventory counts and hashes the names of the ServiceProxyRules that must
// exist. The order of the names does not matter; each must be given once.
func Inventory(names []string) v1alpha1.Inventory {
	var sum uint64
	for _, name := range names {
		sum += v1alpha1.NameHash(name)
	}
	return v1alpha1.Inventory{Services: int32(len(names)), Hash: v1alpha1.FormatInventoryHash(sum)}
}
