package ipvs

import (
	"net/netip"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// servicePlan is what one Service needs in the kernel. Addresses and entries may
// be needed by several Services, as by several ports of one; in one plan each
// stands once.
type servicePlan struct {
	servers []plannedServer
	// entries are of ipsets, KUBE-IPVS-IPS among them; sorted.
	entries []setEntry
	// outRules are for KUBE-IPVS-OUT-FILTER.
	outRules []outRule
	// notes say, for people, what is not as the Service asks.
	notes []string
}

// plannedServer is a virtual server with what it needs besides.
type plannedServer struct {
	Key Key
	Server
	// reals are its real servers, sorted; each has weight 1.
	reals []netip.AddrPort
	// bind: its address is to be on kube-ipvs0.
	bind bool
}

// setEntry is an entry of an ipset.
type setEntry struct {
	set   SetName
	entry Entry
}

// outRule is a rule of KUBE-IPVS-OUT-FILTER, without "-A" and the chain.
type outRule string

// planService plans all ports of a Service.
func (c *config) planService(s *dataplane.Service) servicePlan {
	return servicePlan{}
}
