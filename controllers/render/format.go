package render

import (
	"slices"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// FormatVersion returns the version in which to write rendered objects: the highest writable one
// that every node's last report has, whether its agent is alive or not. Nodes that have never
// reported do not count. If none has, or no version suits all, it is the lowest. behind are the
// nodes, by name, that do not know the highest writable version. writable must not be empty.
func FormatVersion(writable []int32, nodes []v1alpha1.NodeProxyRules) (version int32, behind []string) {
	suits := func(version int32) bool {
		return !slices.ContainsFunc(nodes, func(n v1alpha1.NodeProxyRules) bool { return !knows(&n, version) })
	}
	highest := slices.Max(writable)
	version = slices.Min(writable)
	reported := false
	for i := range nodes {
		reported = reported || nodes[i].Status.Agent != nil
		if !knows(&nodes[i], highest) {
			behind = append(behind, nodes[i].Name)
		}
	}
	slices.Sort(behind)
	if !reported {
		return version, nil
	}
	for _, v := range writable {
		if v > version && suits(v) {
			version = v
		}
	}
	return version, behind
}

// knows reports whether the agent that last reported understands a version.
func knows(node *v1alpha1.NodeProxyRules, version int32) bool {
	agent := node.Status.Agent
	return agent == nil || slices.Contains(agent.KnownFormats(), version)
}
