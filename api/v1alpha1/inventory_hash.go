package v1alpha1

import (
	"fmt"
	"hash/fnv"
)

// NameHash is the contribution of one object name to an inventory hash: its 64-bit FNV-1a
// hash. An inventory hash is the sum of these modulo 2^64: it does not depend on the order,
// and names can be added and removed one by one.
func NameHash(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // a hash never returns an error
	return h.Sum64()
}

// FormatInventoryHash formats an inventory hash for NodeProxy.status.inventory: 16 hexadecimal
// digits.
func FormatInventoryHash(sum uint64) string {
	return fmt.Sprintf("%016x", sum)
}

// ServiceProxyRulesName returns the name of a Service's ServiceProxyRules.
func ServiceProxyRulesName(namespace, name string) string {
	return namespace + "." + name
}
