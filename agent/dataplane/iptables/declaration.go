package iptables

import (
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Declaration describes mode IPTables.
func Declaration() dataplane.Declaration {
	return dataplane.Declaration{
		Mode: v1alpha1.ModeIPTables, Precedence: 10, Baseline: true,
		Owns: dataplane.Owned{
			Chains: []string{
				"nat/" + chainServices, "nat/" + chainNodePorts, "nat/" + chainPostrouting, "nat/" + chainMarkMasq,
				"nat/" + prefixCluster + "*", "nat/" + prefixLocal + "*", "nat/" + prefixExternal + "*", "nat/" + prefixFirewall + "*", "nat/" + prefixEndpoint + "*",
				"filter/" + chainServices, "filter/" + chainExternalServices, "filter/" + chainNodePorts, "filter/" + chainForward, "filter/" + chainProxyFirewall,
			},
			Sysctls: []string{sysctlRouteLocalnet},
		},
	}
}
