package v1alpha1

import (
	"fmt"
	"hash/fnv"
)

// NameHash is what one object name contributes to an inventory hash: its
// 64-bit FNV-1a. An inventory hash is the sum of these modulo 2^64, so that it
// does not depend on order and one name can be added or taken away.
func NameHash(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // a hash never returns an error
	return h.Sum64()
}

// FormatInventoryHash writes an inventory hash as it stands in
// NodeProxy.status.inventory: 16 hexadecimal digits.
func FormatInventoryHash(sum uint64) string {
	return fmt.Sprintf("%016x", sum)
}

// ServiceProxyRulesName is the name of the ServiceProxyRules of a Service.
func ServiceProxyRulesName(namespace, name string) string {
	return namespace + "." + name
}
