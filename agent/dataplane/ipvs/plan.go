package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// servicePlan is what one Service needs in the kernel. Several Services may need the
// same address or entry. In one plan each entry and each virtual server is unique.
type servicePlan struct {
	servers []plannedServer
	// entries are those of ipsets, including KUBE-IPVS-IPS; sorted.
	entries []setEntry
	// outRules are for KUBE-IPVS-OUT-FILTER.
	outRules []outRule
	// notes are the differences from what the Service asks for, human-readable.
	notes      []string
	precedence dataplane.Precedence
}

// plannedServer is a virtual server with what it needs besides.
type plannedServer struct {
	Key Key
	Server
	// reals are its real servers, sorted, each with weight 1.
	reals []netip.AddrPort
	// bind: its address must be on kube-ipvs0.
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

// planService plans all ports of a Service, without the barred virtual servers.
func (c *config) planService(s *dataplane.Service, barred sets.Set[Key]) servicePlan {
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

// enter adds entries, and makes all entries sorted and unique.
func (p *servicePlan) enter(more ...setEntry) {
	p.entries = append(p.entries, more...)
	slices.SortFunc(p.entries, setEntry.compare)
	p.entries = slices.Compact(p.entries)
}

// planner plans one Service.
type planner struct {
	*config
	svc    *dataplane.Service
	barred sets.Set[Key]
	others sets.Set[netip.Addr] // see ofOthers
	server Server               // the same for all its virtual servers
	served dataplane.Once[Key]
	// cluster and local are the real servers of the current port by policy: all its virtual servers
	// share them.
	cluster, local []netip.AddrPort
	out            servicePlan
}

// serverOf returns how the Service's virtual servers select a real server.
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
	if out.Scheduler == "mh" {
		out.Flags |= FlagSourcePort
	}
	if p.svc.AffinitySeconds > 0 {
		out.Flags |= FlagPersistent
		out.Timeout = uint32(p.svc.AffinitySeconds)
	}
	return out
}

func (p *planner) planPort(port *dataplane.Port) {
	p.cluster, p.local = sortedReals(port.Cluster), sortedReals(port.Local)
	for _, m := range port.LocalEndpoints {
		k := Key{m.Addr(), m.Port(), port.Protocol}
		p.enter(setLoopBack, keyAndAddress(k, m.Addr()))
	}
	for d := range p.svc.DestinationsOf(port) {
		k := Key{d.Address, d.Number, port.Protocol}
		switch {
		case d.Kind == dataplane.NodePort:
			p.planNodePort(d)
		case p.barred.Has(k):
		case d.Kind == dataplane.ClusterIP:
			p.enter(setClusterIP, keyEntry(k))
			p.serve(d, k, true)
		case p.others.Has(k.Addr):
		case d.Kind == dataplane.ExternalIP:
			set := setExternalIP
			if d.Local {
				set = setExternalIPLocal
			}
			p.enter(set, keyEntry(k))
			p.serve(d, k, !p.onNode(k.Addr))
		case d.Kind == dataplane.LoadBalancerIP:
			p.planLoadBalancer(d, k)
		}
	}
}

// noteOthers names the addresses of the Service that belong to other Nodes.
func (p *planner) noteOthers() {
	var texts []string
	for _, ip := range p.svc.NodeAddresses {
		if p.others.Has(ip) {
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
	p.out.notes = append(p.out.notes, fmt.Sprintf("addresses of other Nodes are not served here (%s), because mode IPVS would cut this node off from them; run the node in mode IPTables, or remove them from the Service",
		strings.Join(texts, ", ")))
}

func (p *planner) planLoadBalancer(d dataplane.Destination, k Key) {
	p.enter(setLoadBalancer, keyEntry(k))
	if d.Local {
		p.enter(setLoadBalancerLocal, keyEntry(k))
	}
	if len(p.svc.SourceRanges) > 0 {
		p.restrict(k)
	}
	p.serve(d, k, !p.onNode(k.Addr))
}

// restrict limits a load-balancer address to the source ranges. The node's own processes
// have that address as source.
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

// outRuleFor blocks a load-balancer address for the node's own processes.
func outRuleFor(k Key) outRule {
	return outRule("-s " + k.Addr.String() + " -m ipvs --vaddr " + k.Addr.String() +
		" --vproto " + protocolName(k.Protocol) + " --vport " + strconv.Itoa(int(k.Port)) + " -j DROP")
}

// planNodePort plans a virtual server on every address on which NodePorts answer.
func (p *planner) planNodePort(d dataplane.Destination) {
	i := slices.IndexFunc(nodePortSets, func(s nodePortSet) bool { return s.protocol == d.Port.Protocol })
	sets := nodePortSets[max(i, 0)]
	for _, ip := range p.nodePortIPs {
		k := Key{ip, d.Number, d.Port.Protocol}
		if p.barred.Has(k) {
			continue
		}
		entry := portEntry(d.Number)
		if sets.directions == destination {
			entry = keyEntry(k)
		}
		p.enter(sets.all, entry)
		if d.Local {
			p.enter(sets.local, entry)
		}
		p.serve(d, k, false)
	}
}

// serve plans a virtual server. If the Service has an address as several kinds, the first
// one decides, as in mode IPTables.
func (p *planner) serve(d dataplane.Destination, k Key, bind bool) {
	if !p.served.First(k) {
		return
	}
	reals := p.cluster
	if d.Local {
		reals = p.local
		switch {
		case len(reals) > 0 || !d.Port.Available:
		case d.Kind != dataplane.ClusterIP && len(p.cluster) > 0:
			// Local pods and the node reach the cluster's endpoints by these addresses too.
			reals = p.cluster
			p.enter(setNoLocal, keyEntry(k))
		default:
			p.enter(setNoLocalAll, keyEntry(k))
		}
	}
	if bind {
		p.enter(setBound, Entry(k.Addr.String()))
	}
	p.out.servers = append(p.out.servers, plannedServer{Key: k, Server: p.server, reals: reals, bind: bind})
}

// sortedReals sorts endpoints by address and port. Sorted lists, which most are, are not
// copied.
func sortedReals(list []netip.AddrPort) []netip.AddrPort {
	if slices.IsSortedFunc(list, netip.AddrPort.Compare) {
		return list
	}
	return slices.SortedFunc(slices.Values(list), netip.AddrPort.Compare)
}

func (p *planner) enter(set string, e Entry) {
	p.out.entries = append(p.out.entries, setEntry{p.set(set), e})
}
