package desired

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// factWarnings says, for people, where the settings ask for a fact that the
// Node lacks in a family: what that means and what to do. Whatever does not
// depend on the fact is programmed, and the fact is taken up when it comes.
// nodePorts tells whether any Service has one.
func factWarnings(family dataplane.Family, node dataplane.Node, nodePorts bool) []string {
	var out []string
	if *node.Settings.NodePorts.AddressMode == v1alpha1.NodePortsPrimary && len(node.Addresses) == 0 && nodePorts {
		out = append(out, fmt.Sprintf("the Node has no %s address, so NodePorts answer on all %s addresses and not on its primary one; see that the kubelet or the cloud controller reports one in status.addresses of the Node, or change spec.settings.nodePorts", family, family))
	}
	if missing, todo := missingDetector(family, node); missing != "" {
		out = append(out, fmt.Sprintf("%s, so pods of this node are not told from other %s clients: clients that are no pods are not masqueraded on their way to cluster IPs, and pods reach external addresses of Services with external traffic policy Local as those clients do; %s", missing, family, todo))
	}
	return out
}

// missingDetector says what is missing to recognise pods of this node, and what
// to do about it. Mode None wants none.
func missingDetector(family dataplane.Family, node dataplane.Node) (missing, todo string) {
	d := node.Settings.DetectLocal
	switch d.Mode {
	case v1alpha1.DetectLocalNodeCIDR:
		if len(node.PodCIDRs) == 0 {
			return fmt.Sprintf("the Node has no %s range in spec.podCIDRs", family),
				"see that the controller manager or the network plugin allocates one, or change spec.settings.detectLocal"
		}
	case v1alpha1.DetectLocalClusterCIDR:
		ofFamily := func(text string) bool {
			p, err := netip.ParsePrefix(text)
			return err == nil && family.Of(p.Addr())
		}
		if !slices.ContainsFunc(d.ClusterCIDRs, ofFamily) {
			return fmt.Sprintf("spec.settings.detectLocal.clusterCIDRs has no %s range", family), "add that of the cluster's pods"
		}
	}
	return "", ""
}
