package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// servicePlan is what one Service needs in the kernel. Addresses and entries may
// be needed by several Services; in one plan each entry stands once, and each
// virtual server.
type servicePlan struct {
	servers []plannedServer
	// entries are of ipsets, KUBE-IPVS-IPS among them; sorted.
	entries []setEntry
	// outRules are for KUBE-IPVS-OUT-FILTER.
	outRules []outRule
	// notes say, human-readable, what is not as the Service asks.
	notes []string
	// precedence is that of the Service.
	precedence dataplane.Precedence
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

func (e setEntry) compare(o setEntry) int {
	return cmp.Or(cmp.Compare(e.set, o.set), cmp.Compare(e.entry, o.entry))
}

// outRule is a rule of KUBE-IPVS-OUT-FILTER, without "-A" and the chain.
type outRule string

// planService plans all ports of a Service but for virtual servers that it cannot
// have.
func (c *config) planService(s *dataplane.Service, barred map[Key]struct{}) servicePlan {
	p := &planner{config: c, svc: s, barred: barred, others: c.ofOthers(s)}
	p.server, p.out.precedence = p.serverOf(), s.Precedence
	p.noteOthers()
	for i := range s.Ports {
		p.planPort(&s.Ports[i])
	}
	if s.HealthCheckNodePort != 0 {
		p.enter(setHealthCheck, portEntry(s.HealthCheckNodePort))
	}
	p.out.enter()
	return p.out
}

// enter adds entries to those of the plan, in order and each once.
func (p *servicePlan) enter(more ...setEntry) {
	p.entries = append(p.entries, more...)
	slices.SortFunc(p.entries, setEntry.compare)
	p.entries = slices.Compact(p.entries)
}

// planner plans one Service.
type planner struct {
	*config
	svc    *dataplane.Service
	barred map[Key]struct{}
	others map[netip.Addr]struct{} // see ofOthers
	server Server                  // that all its virtual servers are
	served dataplane.Once[Key]
	out    servicePlan
}

// serverOf says how the Service's virtual servers pick a real server.
func (p *planner) serverOf() Server {
	out := Server{Scheduler: p.scheduler}
	if own := p.svc.IPVSScheduler; own != "" {
		if _, missing := slices.BinarySearch(p.missing, own); missing {
			p.out.notes = append(p.out.notes, fmt.Sprintf("the kernel has no IPVS scheduler %s: load its module (modprobe ip_vs_%s) or choose another one; until then %s is used",
				own, own, p.scheduler))
		} else {
			out.Scheduler = own
		}
	}
	if out.Scheduler == schedulerMaglev {
		out.Flags |= FlagSourcePort
	}
	if p.svc.AffinitySeconds > 0 {
		out.Flags |= FlagPersistent
		out.Timeout = uint32(p.svc.AffinitySeconds)
	}
	return out
}

func (p *planner) planPort(port *dataplane.Port) {
	for _, m := range port.Members {
		k := Key{m.Addr(), m.Port(), port.Protocol}
		p.enter(setLoopBack, keyAndAddress(k, m.Addr()))
	}
	for d := range p.svc.DestinationsOf(port) {
		k := Key{d.Address, d.Number, port.Protocol}
		_, barred := p.barred[k]
		switch {
		case d.Kind == dataplane.NodePort:
			p.planNodePort(port)
		case barred:
		case d.Kind == dataplane.ClusterIP:
			p.enter(setClusterIP, keyEntry(k))
			p.serve(port, k, policyOf(d.Local, localInside), true)
		case p.ofOther(d.Address):
		case d.Kind == dataplane.ExternalIP:
			p.enter(p.byPolicy(setExternalIP, setExternalIPLocal), keyEntry(k))
			p.serve(port, k, p.external(), !p.onNode(d.Address))
		case d.Kind == dataplane.LoadBalancerIP:
			p.planLoadBalancer(port, k)
		}
	}
}

// ofOther reports whether an address of the Service is left to another Node.
func (p *planner) ofOther(a netip.Addr) bool {
	_, left := p.others[a]
	return left
}

// noteOthers names the addresses of the Service that are other Nodes'.
func (p *planner) noteOthers() {
	var texts []string
	for _, ip := range p.svc.NodeAddresses {
		if p.ofOther(ip) {
			texts = append(texts, ip.String())
		}
	}
	if len(texts) == 0 {
		return
	}
	const named = 3
	if len(texts) > named {
		texts = append(texts[:named:named], fmt.Sprintf("%d more", len(texts)-named))
	}
	p.out.notes = append(p.out.notes, fmt.Sprintf("addresses of other Nodes are left to these (%s), because mode IPVS would cut this node off from them; run the node in mode IPTables, or take them out of the Service",
		strings.Join(texts, ", ")))
}

// byPolicy returns one of two by the external traffic policy.
func (p *planner) byPolicy(cluster, local string) string {
	if p.svc.ExternalLocal {
		return local
	}
	return cluster
}

func (p *planner) planLoadBalancer(port *dataplane.Port, k Key) {
	p.enter(setLoadBalancer, keyEntry(k))
	if p.svc.ExternalLocal {
		p.enter(setLoadBalancerLocal, keyEntry(k))
	}
	if len(p.svc.SourceRanges) > 0 {
		p.restrict(k)
	}
	p.serve(port, k, p.external(), !p.onNode(k.Addr))
}

// restrict lets source ranges alone use a load-balancer address. The node's own
// processes have that address as source.
func (p *planner) restrict(k Key) {
	p.enter(setLoadBalancerFW, keyEntry(k))
	nodeInside := false
	for _, r := range p.svc.SourceRanges {
		for _, e := range keyAndRange(k, r) {
			p.enter(setSourceRange, e)
		}
		nodeInside = nodeInside || (p.nodeIP.IsValid() && r.Contains(p.nodeIP))
	}
	if nodeInside {
		p.enter(setSourceIP, keyAndAddress(k, k.Addr))
		return
	}
	p.out.outRules = append(p.out.outRules, outRuleFor(k))
}

// outRuleFor keeps the node's own processes from a load-balancer address.
func outRuleFor(k Key) outRule {
	return outRule("-s " + k.Addr.String() + " -m ipvs --vaddr " + k.Addr.String() +
		" --vproto " + protocolName(k.Protocol) + " --vport " + strconv.Itoa(int(k.Port)) + " -j DROP")
}

// planNodePort plans a virtual server on every address that NodePorts answer on.
func (p *planner) planNodePort(port *dataplane.Port) {
	if len(p.nodePortIPs) == 0 {
		return
	}
	all, local := setNodePortTCP, setNodePortLocalTCP
	switch port.Protocol {
	case v1alpha1.ProtocolUDP:
		all, local = setNodePortUDP, setNodePortLocalUDP
	case v1alpha1.ProtocolSCTP:
		all, local = setNodePortSCTP, setNodePortLocalSCTP
	}
	for _, ip := range p.nodePortIPs {
		k := Key{ip, port.NodePort, port.Protocol}
		if _, barred := p.barred[k]; barred {
			continue
		}
		entry := portEntry(port.NodePort)
		if port.Protocol == v1alpha1.ProtocolSCTP {
			entry = keyEntry(k)
		}
		p.enter(all, entry)
		if p.svc.ExternalLocal {
			p.enter(local, entry)
		}
		p.serve(port, k, p.external(), false)
	}
}

// policy is the traffic policy of a virtual server.
type policy int

const (
	cluster      policy = iota
	localInside         // Local, for a cluster IP
	localOutside        // Local, for addresses from outside
)

// policyOf returns a policy Local, or the other one.
func policyOf(isLocal bool, local policy) policy {
	if isLocal {
		return local
	}
	return cluster
}

// external is the Service's external traffic policy.
func (p *planner) external() policy { return policyOf(p.svc.ExternalLocal, localOutside) }

// serve plans a virtual server. Where the Service has one address as several
// things, the first decides, as by iptables.
func (p *planner) serve(port *dataplane.Port, k Key, by policy, bind bool) {
	if !p.served.First(k) {
		return
	}
	reals := port.Cluster
	if by != cluster {
		reals = port.Local
		switch {
		case len(reals) > 0 || !port.Available:
		case by == localOutside && len(port.Cluster) > 0:
			// Local pods and the node reach the cluster's by these addresses too.
			reals = port.Cluster
			p.enter(setNoLocal, keyEntry(k))
		default:
			p.enter(setNoLocalAll, keyEntry(k))
		}
	}
	if bind {
		p.enter(setBound, addressEntry(k.Addr))
	}
	p.out.servers = append(p.out.servers, plannedServer{Key: k, Server: p.server, reals: sortedReals(reals), bind: bind})
}

// sortedReals orders endpoints as the kernel's real servers are compared. Lists
// that are in order already, as most are, are not copied.
func sortedReals(list []netip.AddrPort) []netip.AddrPort {
	if slices.IsSortedFunc(list, netip.AddrPort.Compare) {
		return list
	}
	return slices.SortedFunc(slices.Values(list), netip.AddrPort.Compare)
}

func (p *planner) enter(set string, e Entry) {
	p.out.entries = append(p.out.entries, setEntry{p.set(set), e})
}
