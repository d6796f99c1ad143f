package render

import (
	"slices"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// FormatVersion returns the version in which to write rendered objects: the highest writable one
// in every node's last report, whether its agent is alive or not. Nodes that have never reported do
// not count, because they have no rules to lose. If no version suits all, it is the lowest. behind are the nodes, by name,
// that do not know the highest writable version. writable must not be empty.
func FormatVersion(writable []int32, nodes []v1alpha1.NodeProxyRules) (version int32, behind []string) {
	highest, common := slices.Max(writable), slices.Clone(writable)
	for i := range nodes {
		if nodes[i].Status.Agent == nil {
			continue
		}
		known := nodes[i].Status.Agent.KnownFormats()
		if !slices.Contains(known, highest) {
			behind = append(behind, nodes[i].Name)
		}
		common = slices.DeleteFunc(common, func(v int32) bool { return !slices.Contains(known, v) })
	}
	if len(common) == 0 {
		common = []int32{slices.Min(writable)}
	}
	slices.Sort(behind)
	return slices.Max(common), behind
}

// Inventory counts and hashes the names of the ServiceProxyRules that must exist, which may come in
// any order, without duplicates.
func Inventory(names []string) v1alpha1.Inventory {
	var sum uint64
	for _, name := range names {
		sum += v1alpha1.NameHash(name)
	}
	return v1alpha1.Inventory{Services: int32(len(names)), Hash: v1alpha1.FormatInventoryHash(sum)}
}
