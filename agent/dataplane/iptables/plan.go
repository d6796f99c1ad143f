package iptables

import (
	"bytes"
	"net/netip"
	"strconv"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

type table = string

const (
	filter table = "filter"
	nat    table = "nat"
)

// chainID names a chain within a table.
type chainID struct {
	table table
	name  string
}

// dispatchRule is a rule of a Service in a shared chain. The order of such rules
// does not matter, so each can be added and removed by itself.
type dispatchRule struct {
	in   chainID
	hash uint64
	spec string // without "-A CHAIN"
}

// servicePlan is what one Service needs in the kernel.
type servicePlan struct {
	chains   []chain        // all in nat; endpoint chains before those that jump to them
	dispatch []dispatchRule // in nat and filter
}

// config is what the rules depend on besides Services.
type config struct {
	family        dataplane.Family
	podMatch      string // matches traffic of local pods, such as "-s 10.244.0.0/16"; "" matches none
	masqueradeAll bool
	mark          string // such as 0x4000
	randomFully   bool
	dropInvalid   bool
	nodeIP        netip.Addr // primary address; invalid if unknown
	nodePorts     dataplane.NodePorts
	nodePortIPs   []netip.Addr // of interfaces, that NodePorts answer on; only where there are ranges
	terse         bool         // leave comments out of the rules of endpoints
	flat          bool         // one chain for all endpoints of a port, as kube-proxy has
}

// planService plans a Service with the texts of all chains.
func (c *config) planService(s *dataplane.Service) servicePlan {
	return c.planTexts(s, func(*chain) bool { return true })
}

// planTexts plans a Service with the texts of those chains that are to be written: a large Service
// has megabytes of them, of which most changes write few.
func (c *config) planTexts(s *dataplane.Service, written func(*chain) bool) servicePlan {
	var out servicePlan
	var buffer bytes.Buffer
	const perPort = 4 // besides those for endpoints or addresses
	chains := 0
	for i := range s.Ports {
		chains += perPort + max(len(s.Ports[i].Cluster), len(s.Ports[i].Local))
	}
	out.chains = make([]chain, 0, chains)
	out.dispatch = make([]dispatchRule, 0, len(s.Ports)*(perPort+len(s.ExternalIPs)+len(s.LoadBalancerIPs)))
	for i := range s.Ports {
		p := c.newPortPlan(s, &s.Ports[i])
		p.buffer, p.written, p.out = &buffer, written, out
		p.planDispatch()
		if p.port.Available {
			p.planChains()
		}
		for j := len(out.chains); j < len(p.out.chains); j++ {
			p.out.chains[j].port = i
		}
		out = p.out
	}
	return out
}

// portPlan plans one port of a Service. Without any endpoint traffic is rejected, without a
// local endpoint under policy Local it is dropped.
type portPlan struct {
	*config
	svc  *dataplane.Service
	port *dataplane.Port
	out  servicePlan

	buffer  *bytes.Buffer // for the text of one chain
	written func(*chain) bool

	name        string // namespace/name:port
	protocol    string
	match       string // "-m tcp -p tcp"
	dport       string // "--dport 80"
	note        string // comment of the rules of endpoints
	cluster     string // chain names
	local       string
	external    string
	firewall    string
	internal    string // chain that the cluster IP jumps to
	hasInternal bool
	hasExternal bool
	accessible  bool                       // answers on more than the cluster IP
	translated  dataplane.Once[netip.Addr] // those that have a rule in nat KUBE-SERVICES
}

func (c *config) newPortPlan(s *dataplane.Service, port *dataplane.Port) *portPlan {
	protocol := protocolName(port.Protocol)
	name := portName(s.Name, port.Name)
	hash := chainHash(name, protocol, "")
	p := &portPlan{
		config: c, svc: s, port: port,
		name: name, protocol: protocol,
		match: "-m " + protocol + " -p " + protocol,
		dport: "--dport " + strconv.Itoa(int(port.Port)),

		cluster: prefixCluster + hash, local: prefixLocal + hash,
		external: prefixExternal + hash, firewall: prefixFirewall + hash,
		hasInternal: port.Available && (!s.InternalLocal || len(port.Local) > 0),
		hasExternal: port.Available && (!s.ExternalLocal || len(port.Local) > 0),
		accessible:  s.ExternallyAccessible(port),
	}
	p.note = p.endpointComment(name)
	p.internal = p.cluster
	if s.InternalLocal {
		p.internal = p.local
	}
	return p
}

// planDispatch plans the rules in shared chains: where traffic of each
// destination goes, or why it is rejected.
func (p *portPlan) planDispatch() {
	for d := range p.svc.DestinationsOf(p.port) {
		switch d.Kind {
		case dataplane.ClusterIP:
			if p.hasInternal {
				p.translate(d.Address, "cluster IP", p.internal)
			} else {
				p.reject(chainServices, p.match, "-d "+d.Address.String(), p.dport)
			}
		case dataplane.ExternalIP:
			p.dispatchExternal(d.Address, "external IP", p.external)
		case dataplane.LoadBalancerIP:
			p.dispatchLoadBalancer(d.Address)
		case dataplane.NodePort:
			p.dispatchNodePort()
		}
	}
	if p.svc.HealthCheckNodePort != 0 {
		p.add(filter, chainNodePorts, commentMatch(p.name+" health check node port"),
			"-m tcp -p tcp --dport "+strconv.Itoa(int(p.svc.HealthCheckNodePort)), "-j ACCEPT")
	}
}

func (p *portPlan) dispatchLoadBalancer(ip netip.Addr) {
	if !p.restricted() {
		p.dispatchExternal(ip, "loadbalancer IP", p.external)
		return
	}
	p.dispatchExternal(ip, "loadbalancer IP", p.firewall)
	if p.port.Available {
		p.add(filter, chainProxyFirewall, commentMatch(p.name+" traffic not accepted by "+p.firewall),
			p.match, "-d "+ip.String(), p.dport, "-j DROP")
	}
}

func (p *portPlan) dispatchExternal(ip netip.Addr, what, target string) {
	if p.port.Available {
		p.translate(ip, what, target)
	}
	if !p.hasExternal {
		p.reject(chainExternalServices, p.match, "-d "+ip.String(), p.dport)
	}
}

// translate plans where traffic to an address goes. If the Service has an
// address as several kinds, the first decides, as by kube-proxy, whose further
// rules are never reached: our rules in shared chains have no order.
func (p *portPlan) translate(ip netip.Addr, what, target string) {
	if !p.translated.First(ip) {
		return
	}
	p.add(nat, chainServices, commentMatch(p.name+" "+what), p.match, "-d "+ip.String(), p.dport, "-j "+target)
}

func (p *portPlan) dispatchNodePort() {
	dport := "--dport " + strconv.Itoa(int(p.port.NodePort))
	if p.port.Available {
		p.add(nat, chainNodePorts, commentMatch(p.name), p.match, dport, "-j "+p.external)
	}
	if !p.hasExternal {
		p.reject(chainExternalServices, "-m addrtype --dst-type LOCAL", p.match, dport)
	}
}

// reject plans the filter rule for traffic that has nowhere to go. It only
// meets packets that nat did not translate.
func (p *portPlan) reject(in string, match ...string) {
	why, verdict := " has no endpoints", "-j REJECT"
	if p.port.Available {
		why, verdict = " has no local endpoints", "-j DROP"
	}
	parts := append([]string{commentMatch(p.name + why)}, match...)
	p.add(filter, in, append(parts, verdict)...)
}

func (p *portPlan) add(t table, in string, parts ...string) {
	spec := join(parts...)
	p.out.dispatch = append(p.out.dispatch, dispatchRule{in: chainID{t, in}, hash: ruleHash(spec), spec: spec})
}

// restricted reports whether load-balancer IPs are limited to source ranges.
func (p *portPlan) restricted() bool {
	return len(p.svc.LoadBalancerIPs) > 0 && len(p.svc.SourceRanges) > 0
}

func (p *portPlan) planChains() {
	cluster := p.endpointChains(p.port.Cluster, nil)
	local := p.endpointChains(p.port.Local, cluster)
	if len(cluster) > 0 {
		p.policyChain(p.cluster, cluster)
	}
	if len(local) > 0 {
		p.policyChain(p.local, local)
	}
	if p.accessible {
		p.externalChain()
	}
	if p.restricted() {
		p.firewallChain()
	}
}

// endpointChain is an endpoint with the name of its chain.
type endpointChain struct {
	netip.AddrPort
	name string
}

// endpointChains plans the chains of those endpoints that are not known.
func (p *portPlan) endpointChains(list []netip.AddrPort, known []endpointChain) []endpointChain {
	if len(list) == 0 {
		return nil
	}
	names := make(map[netip.AddrPort]string, len(known))
	for _, ep := range known {
		names[ep.AddrPort] = ep.name
	}
	out := make([]endpointChain, 0, len(list))
	for _, ep := range list {
		name, exists := names[ep]
		if !exists {
			text := ep.String()
			name = prefixEndpoint + chainHash(p.name, p.protocol, text)
			p.endpointChain(ep, text, name)
		}
		out = append(out, endpointChain{ep, name})
	}
	return out
}

func (p *portPlan) newChain(name string) *chainWriter {
	p.buffer.Reset()
	return &chainWriter{chain: chain{name: name}, buffer: p.buffer}
}

func (p *portPlan) finish(w *chainWriter) {
	if p.written(&w.chain) {
		w.text = w.buffer.String()
	}
	p.out.chains = append(p.out.chains, w.chain)
}

// endpointChain masquerades what an endpoint sends to itself, then records the
// client for session affinity and translates the destination.
func (p *portPlan) endpointChain(ep netip.AddrPort, text, name string) {
	w := p.newChain(name)
	recent := ""
	if p.svc.AffinitySeconds > 0 {
		recent = "-m recent --name " + name + " --set"
	}
	w.rule(p.note, "-s "+ep.Addr().String(), "-j "+chainMarkMasq)
	w.rule(p.note, recent, p.match, "-j DNAT --to-destination "+text)
	p.finish(w)
}

func (p *portPlan) endpointComment(text string) string {
	if p.terse {
		return ""
	}
	return commentMatch(text)
}

// masqueradeRule marks what reaches the cluster IP from outside the cluster's
// pods. It names the cluster IP, because external traffic passes the same chain.
func (p *portPlan) masqueradeRule(w *chainWriter) {
	notPod := ""
	switch {
	case p.masqueradeAll:
	case p.podMatch != "":
		notPod = "! " + p.podMatch
	default:
		return
	}
	w.rule(commentMatch(p.name+" cluster IP"), p.match, "-d "+p.svc.ClusterIP.String(), p.dport, notPod, "-j "+chainMarkMasq)
}

// externalChain is where all external destinations lead. Under policy Local,
// pods and the node itself still reach all endpoints, as by the cluster IP.
func (p *portPlan) externalChain() {
	w := p.newChain(p.external)
	target := p.cluster
	if p.svc.ExternalLocal {
		target = p.local
		if p.podMatch != "" {
			w.rule(commentMatch("pod traffic for "+p.name+" external destinations"), p.podMatch, "-j "+p.cluster)
		}
		w.rule(commentMatch("masquerade LOCAL traffic for "+p.name+" external destinations"),
			"-m addrtype --src-type LOCAL", "-j "+chainMarkMasq)
		w.rule(commentMatch("route LOCAL traffic for "+p.name+" external destinations"),
			"-m addrtype --src-type LOCAL", "-j "+p.cluster)
	} else {
		w.rule(commentMatch("masquerade traffic for "+p.name+" external destinations"), "-j "+chainMarkMasq)
	}
	if p.hasExternal {
		w.rule("-j " + target)
	}
	p.finish(w)
}

// firewallChain accepts source ranges. The rest stays untranslated and is
// dropped in KUBE-PROXY-FIREWALL.
func (p *portPlan) firewallChain() {
	w := p.newChain(p.firewall)
	note := commentMatch(p.name + " loadbalancer IP")
	nodeInside := false
	for _, r := range p.svc.SourceRanges {
		w.rule(note, "-s "+r.String(), "-j "+p.external)
		nodeInside = nodeInside || (p.nodeIP.IsValid() && r.Contains(p.nodeIP))
	}
	if nodeInside {
		// A node that has a load-balancer address may choose it as source.
		for _, ip := range p.svc.LoadBalancerIPs {
			w.rule(note, "-s "+ip.String(), "-j "+p.external)
		}
	}
	w.rule(commentMatch("other traffic to " + p.name + " will be dropped by " + chainProxyFirewall))
	p.finish(w)
}
