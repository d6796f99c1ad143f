package ipvs

import "github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"

// rules are the chains of the mode and the jumps to them. Used are the ipsets
// that have entries: most rules that ask an empty one are left out. Out are those
// that Services need in KUBE-IPVS-OUT-FILTER, in any order.
func (c *config) rules(used map[SetName]bool, out []outRule) iptables.Fixed {
	return iptables.Fixed{}
}
