package ipvs

import "github.com/nodeproxy-io/nodeproxy/agent/dataplane"

// The ipsets by their names for IPv4.
const (
	setLoopBack          = "KUBE-LOOP-BACK"
	setClusterIP         = "KUBE-CLUSTER-IP"
	setExternalIP        = "KUBE-EXTERNAL-IP"
	setExternalIPLocal   = "KUBE-EXTERNAL-IP-LOCAL"
	setLoadBalancer      = "KUBE-LOAD-BALANCER"
	setLoadBalancerLocal = "KUBE-LOAD-BALANCER-LOCAL"
	setLoadBalancerFW    = "KUBE-LOAD-BALANCER-FW"
	setSourceRange       = "KUBE-LOAD-BALANCER-SOURCE-CIDR"
	setSourceIP          = "KUBE-LOAD-BALANCER-SOURCE-IP"
	setNodePortTCP       = "KUBE-NODE-PORT-TCP"
	setNodePortLocalTCP  = "KUBE-NODE-PORT-LOCAL-TCP"
	setNodePortUDP       = "KUBE-NODE-PORT-UDP"
	setNodePortLocalUDP  = "KUBE-NODE-PORT-LOCAL-UDP"
	setNodePortSCTP      = "KUBE-NODE-PORT-SCTP-HASH"
	setNodePortLocalSCTP = "KUBE-NODE-PORT-LOCAL-SCTP-HASH"
	setHealthCheck       = "KUBE-HEALTH-CHECK-NODE-PORT"
	setBound             = "KUBE-IPVS-IPS"
	// setNoLocal and setNoLocalAll are ours: destinations under policy Local that
	// have endpoints elsewhere only. Those in the former lead there, but for local
	// pods and the node alone; those in the latter lead nowhere.
	setNoLocal    = "NODEPROXY-NO-LOCAL"
	setNoLocalAll = "NODEPROXY-NO-LOCAL-ALL"
)

// setDef is an ipset as it is created.
type setDef struct {
	Name SetName
	Type SetType
}

// setTypes are all ipsets of the mode.
var setTypes = []struct {
	name string
	kind SetType
}{
	{setLoopBack, HashIPPortIP},
	{setClusterIP, HashIPPort},
	{setExternalIP, HashIPPort},
	{setExternalIPLocal, HashIPPort},
	{setLoadBalancer, HashIPPort},
	{setLoadBalancerLocal, HashIPPort},
	{setLoadBalancerFW, HashIPPort},
	{setSourceRange, HashIPPortNet},
	{setSourceIP, HashIPPortIP},
	{setNodePortTCP, BitmapPort},
	{setNodePortLocalTCP, BitmapPort},
	{setNodePortUDP, BitmapPort},
	{setNodePortLocalUDP, BitmapPort},
	{setNodePortSCTP, HashIPPort},
	{setNodePortLocalSCTP, HashIPPort},
	{setHealthCheck, BitmapPort},
	{setBound, HashIP},
	{setNoLocal, HashIPPort},
	{setNoLocalAll, HashIPPort},
}

// SetNames are the names of all ipsets of the mode in a family.
func SetNames(family dataplane.Family) []SetName {
	out := make([]SetName, len(setTypes))
	for i, s := range setTypes {
		out[i] = setName(family, s.name)
	}
	return out
}

// ownSets are the ipsets that kube-proxy does not have.
var ownSets = []string{setNoLocal, setNoLocalAll}

// sets are all ipsets of the family. They exist whether they have entries or not.
func (c *config) sets() []setDef {
	out := make([]setDef, len(setTypes))
	for i, s := range setTypes {
		out[i] = setDef{c.set(s.name), s.kind}
	}
	return out
}

// nodePortSets are the ipsets of NodePorts by protocol, as rules ask them.
var nodePortSets = []struct{ protocol, all, local, directions string }{
	{"tcp", setNodePortTCP, setNodePortLocalTCP, onlyPort},
	{"udp", setNodePortUDP, setNodePortLocalUDP, onlyPort},
	{"sctp", setNodePortSCTP, setNodePortLocalSCTP, destination},
}

// set is the name of an ipset in the family, from its name for IPv4.
func (c *config) set(name string) SetName { return setName(c.family, name) }
