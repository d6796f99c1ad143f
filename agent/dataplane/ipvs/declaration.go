package ipvs

import (
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Declaration describes mode IPVS. Packets meet the rules of mode IPTables before virtual
// servers.
func Declaration() dataplane.Declaration {
	const only = " Only in mode IPVS."
	out := dataplane.Declaration{
		Mode: v1alpha1.ModeIPVS, Precedence: 30, OwnFlows: true, BindsAddresses: true,
		Matches: []string{"set", "ipvs", "physdev"},
		Advice:  "Kubernetes has deprecated kube-proxy's ipvs mode (off by default in 1.40, removed in 1.43): plan to move to mode IPTables",
		Metrics: []dataplane.ObjectMetric{
			{Object: dataplane.VirtualServers, Name: "ipvs_virtual_servers", Help: "IPVS virtual servers of nodeproxy in the kernel." + only},
			{Object: dataplane.RealServers, Name: "ipvs_real_servers", Help: "Real servers of all virtual servers of nodeproxy together." + only},
			{Object: dataplane.Draining, Name: "ipvs_draining_real_servers", Help: "Real servers that get no new connections and are deleted once theirs have ended." + only},
			{Object: dataplane.SetEntries, Name: "ipset_entries", Help: "Entries of all ipsets of nodeproxy." + only},
		},
		Owns: dataplane.Owned{
			Chains: []string{
				tableNAT + "/" + chainServices, tableNAT + "/" + chainPostrouting, tableNAT + "/" + chainMarkMasq,
				tableNAT + "/" + chainNodePort, tableNAT + "/" + chainLoadBalancer,
				tableFilter + "/" + chainForward, tableFilter + "/" + chainNodePort, tableFilter + "/" + chainProxyFirewall,
				tableFilter + "/" + chainSourceRanges, tableFilter + "/" + chainIPVSFilter, tableFilter + "/" + chainIPVSOutFilter,
			},
			Links: []string{deviceName},
			Rules: []dataplane.SharedRule{
				{Chain: tableFilter + "/INPUT", Rule: "-j " + chainProxyFirewall},
				{Chain: tableFilter + "/FORWARD", Rule: "-j " + chainProxyFirewall},
			},
		},
	}
	for _, loopback := range []string{loopbackIPv4, loopbackIPv6} {
		out.Owns.Rules = append(out.Owns.Rules, dataplane.SharedRule{Chain: tableNAT + "/" + chainServices, Rule: "-s " + loopback + toReturn})
	}
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		// While cluster IPs are addresses of the node, the kernel uses them as sources of the node's
		// own connections, whichever mode translates these.
		out.Owns.Rules = append(out.Owns.Rules, dataplane.SharedRule{
			Chain: tableNAT + "/" + chainServices, First: true,
			Rule: "-m set --match-set " + string(setName(family, setClusterIP)) + " " + ownSource + toMarkMasq,
		})
		for _, name := range SetNames(family) {
			out.Owns.Sets = append(out.Owns.Sets, string(name))
		}
	}
	const needsAll = "4.18" // a kernel that needs every sysctl
	for _, s := range (&config{strictARP: true}).sysctls(needsAll) {
		out.Owns.Sysctls = append(out.Owns.Sysctls, s.name)
	}
	return out
}
