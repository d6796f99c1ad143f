package ipvs

import (
	"maps"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
)

// Chains of the mode. Like those of the ipsets, the names are kube-proxy's: a node is
// taken over in place, and tools that know them keep working.
const (
	chainServices      = "KUBE-SERVICES"
	chainPostrouting   = "KUBE-POSTROUTING"
	chainNodePort      = "KUBE-NODE-PORT" // in both tables
	chainLoadBalancer  = "KUBE-LOAD-BALANCER"
	chainMarkMasq      = "KUBE-MARK-MASQ"
	chainForward       = "KUBE-FORWARD"
	chainProxyFirewall = "KUBE-PROXY-FIREWALL"
	chainSourceRanges  = "KUBE-SOURCE-RANGES-FIREWALL"
	chainIPVSFilter    = "KUBE-IPVS-FILTER"
	chainIPVSOutFilter = "KUBE-IPVS-OUT-FILTER"
	tableNAT           = "nat"
	tableFilter        = "filter"
)

// Ends of rules.
const (
	toAccept     = " -j ACCEPT"
	toReturn     = " -j RETURN"
	toDrop       = " -j DROP"
	toMarkMasq   = " -j " + chainMarkMasq
	offMachine   = " -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL"
	toLocal      = "-m addrtype --dst-type LOCAL"
	fromNode     = " -m addrtype --src-type LOCAL"
	newOnly      = "-m conntrack --ctstate NEW "
	destination  = "dst,dst"
	onlyAddress  = "dst"
	onlyPort     = "dst"
	withSource   = "dst,dst,src"
	ownSource    = "src,dst"
	loopbackIPv4 = "127.0.0.0/8"
	loopbackIPv6 = "::1/128"
)

// rules returns the chains of the mode and the jumps to them. Most rules that match an
// ipset are omitted unless it is used, which means that it has entries. Services need
// the rules of out in KUBE-IPVS-OUT-FILTER.
func (c *config) rules(used map[SetName]int, out map[outRule]int) fixedrules.Rules {
	w := &ruleWriter{config: c, used: used}
	w.services()
	w.nodePorts()
	w.loadBalancer()
	w.chain(tableNAT, chainMarkMasq, "-j MARK --or-mark "+c.mark)
	w.chain(tableNAT, chainPostrouting)
	w.when(setLoopBack, "", withSource, " -j MASQUERADE")
	w.add(fixedrules.Postrouting(c.mark, true)...)

	w.chain(tableFilter, chainForward, fixedrules.Forward(c.mark)...)
	w.chain(tableFilter, chainNodePort, w.match(setHealthCheck, onlyPort)+toAccept)
	w.firewall()
	w.ipvsFilter()
	w.chain(tableFilter, chainIPVSOutFilter)
	for _, r := range slices.Sorted(maps.Keys(out)) {
		w.add(string(r))
	}
	return fixedrules.Rules{Chains: w.chains, Jumps: jumps()}
}

// ruleWriter collects chains.
type ruleWriter struct {
	*config
	used   map[SetName]int
	chains []fixedrules.Chain
}

// chain starts a chain.
func (w *ruleWriter) chain(table, name string, rules ...string) {
	w.chains = append(w.chains, fixedrules.Chain{Table: table, Name: name, Rules: rules})
}

// add appends rules to the chain that was started last.
func (w *ruleWriter) add(rules ...string) {
	last := &w.chains[len(w.chains)-1]
	last.Rules = append(last.Rules, rules...)
}

// match matches packets whose parts, named by directions, are in an ipset.
func (w *ruleWriter) match(set, directions string) string {
	return "-m set --match-set " + string(w.set(set)) + " " + directions
}

// when appends a rule that matches an ipset, if that has entries. Before and after are
// the other parts of the rule.
func (w *ruleWriter) when(set, before, directions, after string) {
	if w.used[w.set(set)] > 0 {
		w.add(before + w.match(set, directions) + after)
	}
}

// services is where packets enter the mode. They are marked if they must be masqueraded,
// and accepted before rules of other programs translate them. Afterwards IPVS sees them.
func (w *ruleWriter) services() {
	loopback := loopbackIPv4
	if w.family == dataplane.IPv6 {
		loopback = loopbackIPv6
	}
	w.chain(tableNAT, chainServices, "-s "+loopback+toReturn)
	// Packets of the node's own processes to endpoints on other nodes may have the
	// address of the Service as source, and answers to that would not come back.
	w.when(setNoLocal, "", destination, fromNode+toMarkMasq)
	w.when(setLoadBalancer, "", destination, " -j "+chainLoadBalancer)
	switch {
	case w.masqueradeAll:
		w.when(setClusterIP, "", destination, toMarkMasq)
	case w.podMatch != "":
		w.when(setClusterIP, "", destination, " ! "+w.podMatch+toMarkMasq)
	default:
		// The kernel gives packets of the node's own processes the cluster IP as
		// source, because it is a local address.
		w.when(setClusterIP, "", ownSource, toMarkMasq)
	}
	w.when(setExternalIP, "", destination, toMarkMasq)
	for _, set := range []string{setExternalIP, setExternalIPLocal} {
		w.when(set, "", destination, offMachine+toAccept)
		w.when(set, "", destination, " "+toLocal+toAccept)
	}
	w.add(toLocal + " -j " + chainNodePort)
	w.when(setClusterIP, "", destination, toAccept)
	w.when(setLoadBalancer, "", destination, toAccept)
}

// nodePorts marks packets to a NodePort, unless its policy is Local.
func (w *ruleWriter) nodePorts() {
	w.chain(tableNAT, chainNodePort)
	for _, p := range nodePortSets {
		before := "-p " + protocolName(p.protocol) + " "
		w.when(p.local, before, p.directions, toReturn)
		w.when(p.all, before, p.directions, toMarkMasq)
	}
}

func (w *ruleWriter) loadBalancer() {
	w.chain(tableNAT, chainLoadBalancer)
	w.when(setLoadBalancerLocal, "", destination, toReturn)
	w.add("-j " + chainMarkMasq)
}

// firewall drops packets from outside the source ranges.
func (w *ruleWriter) firewall() {
	w.chain(tableFilter, chainProxyFirewall)
	w.when(setLoadBalancerFW, "", destination, " -j "+chainSourceRanges)
	w.chain(tableFilter, chainSourceRanges)
	w.when(setSourceRange, "", withSource, toReturn)
	w.when(setSourceIP, "", withSource, toReturn)
	w.add("-j DROP")
}

// ipvsFilter blocks access to the node's own servers by the addresses of kube-ipvs0,
// which are local.
func (w *ruleWriter) ipvsFilter() {
	w.chain(tableFilter, chainIPVSFilter)
	// Otherwise IPVS would answer with a rejection, for lack of a real server.
	w.when(setNoLocalAll, newOnly, destination, toDrop)
	// Otherwise IPVS would forward them to another node. If pods cannot be
	// distinguished, their packets are dropped too, as in mode IPTables. Packets of the
	// node itself do not come here.
	notPods := ""
	if w.podMatch != "" {
		notPods = " ! " + w.podMatch
	}
	w.when(setNoLocal, newOnly, destination, notPods+toDrop)
	for _, set := range passingSets {
		w.add(w.match(set, destination) + toReturn)
	}
	w.add(
		w.match(setHealthCheck, onlyPort)+toReturn,
		newOnly+w.match(setBound, onlyAddress)+" -j REJECT",
	)
}

// jumps lead from built-in chains to those of the mode. The comments are kube-proxy's,
// which would add its own jump if it found another comment.
func jumps() []fixedrules.Jump {
	jump := func(table, from, to, comment string) fixedrules.Jump {
		return fixedrules.Jump{Table: table, Chain: from, Rule: `-m comment --comment "` + comment + `" -j ` + to}
	}
	const (
		portals  = "kubernetes service portals"
		firewall = "kube-proxy firewall rules"
		filter   = "kubernetes ipvs access filter"
	)
	return []fixedrules.Jump{
		jump(tableNAT, "PREROUTING", chainServices, portals),
		jump(tableNAT, "OUTPUT", chainServices, portals),
		jump(tableNAT, "POSTROUTING", chainPostrouting, "kubernetes postrouting rules"),
		jump(tableFilter, "INPUT", chainIPVSFilter, filter),
		jump(tableFilter, "INPUT", chainProxyFirewall, firewall),
		jump(tableFilter, "INPUT", chainNodePort, "kubernetes health check rules"),
		jump(tableFilter, "FORWARD", chainProxyFirewall, firewall),
		jump(tableFilter, "FORWARD", chainForward, "kubernetes forwarding rules"),
		jump(tableFilter, "OUTPUT", chainIPVSOutFilter, filter),
	}
}
