package ipvs

import (
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
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

// rules are the chains of the mode and the jumps to them. Used are the ipsets
// that have entries: most rules that ask an empty one are left out. Out are those
// that Services need in KUBE-IPVS-OUT-FILTER, in any order.
func (c *config) rules(used map[SetName]bool, out []outRule) iptables.Fixed {
	w := &ruleWriter{config: c, used: used}
	w.services()
	w.nodePorts()
	w.loadBalancer()
	w.chain(tableNAT, chainMarkMasq, "-j MARK --or-mark "+c.mark)
	w.chain(tableNAT, chainPostrouting)
	w.when(setLoopBack, "", withSource, " -j MASQUERADE")
	w.add(iptables.PostroutingRules(c.mark, true)...)

	w.chain(tableFilter, chainForward, iptables.ForwardRules(c.mark)...)
	w.chain(tableFilter, chainNodePort, w.match(setHealthCheck, onlyPort)+toAccept)
	w.firewall()
	w.ipvsFilter()
	w.chain(tableFilter, chainIPVSOutFilter)
	for _, r := range slices.Compact(slices.Sorted(slices.Values(out))) {
		w.add(string(r))
	}
	return iptables.Fixed{Chains: w.chains, Jumps: jumps()}
}

// ruleWriter collects chains.
type ruleWriter struct {
	*config
	used   map[SetName]bool
	chains []iptables.FixedChain
}

// chain begins a chain.
func (w *ruleWriter) chain(table, name string, rules ...string) {
	w.chains = append(w.chains, iptables.FixedChain{Table: table, Name: name, Rules: rules})
}

// add appends rules to the chain that was begun last.
func (w *ruleWriter) add(rules ...string) {
	last := &w.chains[len(w.chains)-1]
	last.Rules = append(last.Rules, rules...)
}

// match asks an ipset for what directions name of a packet.
func (w *ruleWriter) match(set, directions string) string {
	return "-m set --match-set " + string(w.set(set)) + " " + directions
}

// when appends a rule that asks an ipset, if that one has entries. Before and
// after are its other parts.
func (w *ruleWriter) when(set, before, directions, after string) {
	if w.used[w.set(set)] {
		w.add(before + w.match(set, directions) + after)
	}
}

// services is where packets enter the mode: marked if they are to be masqueraded,
// and accepted before others' rules translate them. Whatever the destination, IPVS
// sees it afterwards.
func (w *ruleWriter) services() {
	loopback := loopbackIPv4
	if w.family == dataplane.IPv6 {
		loopback = loopbackIPv6
	}
	w.chain(tableNAT, chainServices, "-s "+loopback+toReturn)
	// What the node's own processes send to endpoints on other nodes: the kernel may
	// have given it the address of the Service as source. Even if that is one of
	// pods, answers would not come back.
	w.when(setNoLocal, "", destination, fromNode+toMarkMasq)
	w.when(setLoadBalancer, "", destination, " -j "+chainLoadBalancer)
	switch {
	case w.masqueradeAll:
		w.when(setClusterIP, "", destination, toMarkMasq)
	case w.podMatch != "":
		w.when(setClusterIP, "", destination, " ! "+w.podMatch+toMarkMasq)
	default:
		// The node's own processes: the kernel gives their packets the cluster
		// IP as source as well, because it is a local address.
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

// nodePorts marks what comes to a NodePort, unless it stays on the node by policy.
func (w *ruleWriter) nodePorts() {
	w.chain(tableNAT, chainNodePort)
	for _, p := range nodePortSets {
		before := "-p " + p.protocol + " "
		w.when(p.local, before, p.directions, toReturn)
		w.when(p.all, before, p.directions, toMarkMasq)
	}
}

func (w *ruleWriter) loadBalancer() {
	w.chain(tableNAT, chainLoadBalancer)
	w.when(setLoadBalancerLocal, "", destination, toReturn)
	w.add("-j " + chainMarkMasq)
}

// firewall drops what source ranges do not allow.
func (w *ruleWriter) firewall() {
	w.chain(tableFilter, chainProxyFirewall)
	w.when(setLoadBalancerFW, "", destination, " -j "+chainSourceRanges)
	w.chain(tableFilter, chainSourceRanges)
	w.when(setSourceRange, "", withSource, toReturn)
	w.when(setSourceIP, "", withSource, toReturn)
	w.add("-j DROP")
}

// passingSets are the ipsets that name the destinations on kube-ipvs0 that virtual
// servers answer on.
var passingSets = []string{setLoadBalancer, setClusterIP, setExternalIP, setExternalIPLocal}

// ipvsFilter keeps the node's own servers from being reached by the addresses of
// kube-ipvs0, which are local to it.
func (w *ruleWriter) ipvsFilter() {
	w.chain(tableFilter, chainIPVSFilter)
	// Before IPVS refuses them with an answer, for want of a real server.
	w.when(setNoLocalAll, newOnly, destination, toDrop)
	// Before IPVS forwards them to another node. Without a way to tell pods these
	// are dropped as well, as by mode IPTables; what the node itself sends does not
	// pass here.
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

// jumps lead from built-in chains to those of the mode. The comments are
// kube-proxy's: it takes a jump with another comment for another jump, and would
// add its own.
func jumps() []iptables.Jump {
	jump := func(table, from, to, comment string) iptables.Jump {
		return iptables.Jump{Table: table, Chain: from, Rule: `-m comment --comment "` + comment + `" -j ` + to}
	}
	const (
		portals  = "kubernetes service portals"
		firewall = "kube-proxy firewall rules"
		filter   = "kubernetes ipvs access filter"
	)
	return []iptables.Jump{
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
