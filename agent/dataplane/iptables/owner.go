package iptables

import (
	"bytes"
	"slices"
	"strings"
)

// The modes IPTables and IPVS share chains, by name and by the jumps to them.
// While a node changes from one mode to the other, what both have put into nat
// KUBE-SERVICES stands there together: see fixed.go and compare.go.

// owner is whose chains are meant.
type owner int

const (
	modeIPTables owner = iota
	modeIPVS
)

// owns reports whether a chain belongs to the proxy in this mode. The other mode
// may use it as well.
func (o owner) owns(id chainID) bool {
	if o == modeIPVS {
		return isShared(id) || ofIPVSAlone(id)
	}
	return isOurs(id)
}

// ownsAlone reports whether a chain belongs to this mode and not to the other.
func (o owner) ownsAlone(id chainID) bool { return o.owns(id) && !isShared(id) }

// adds reports whether this mode keeps rules in a chain of others'.
func (o owner) adds(id chainID) bool { return o == modeIPTables && id.name == chainFirewall }

// ofIPVSAlone reports whether only mode IPVS has a chain.
func ofIPVSAlone(id chainID) bool {
	switch id.name {
	case chainNodePort:
		return true
	case chainLoadBalancer:
		return id.table == nat
	case chainSourceRanges, chainIPVSFilter, chainIPVSOutFilter:
		return id.table == filter
	default:
		return false
	}
}

// hooked are the built-in chains that hold jumps of ours.
var hooked = map[chainID]bool{
	{nat, "PREROUTING"}: true, {nat, "OUTPUT"}: true, {nat, "POSTROUTING"}: true,
	{filter, "INPUT"}: true, {filter, "FORWARD"}: true, {filter, "OUTPUT"}: true,
}

func isHooked(id chainID) bool { return hooked[id] }

// isShared reports whether both modes have a chain.
func isShared(id chainID) bool {
	switch id.name {
	case chainServices, chainPostrouting, chainMarkMasq:
		return id.table == nat
	case chainForward, chainProxyFirewall:
		return id.table == filter
	default:
		return false
	}
}

// targets are the names, as the kernel keeps them, of the chains to which jumps
// from built-in chains lead.
func (o owner) targets() [][]byte {
	if o == modeIPVS {
		return ipvsTargets
	}
	return targets
}

// targets are the names of the chains to which the jumps of mode IPTables lead.
var targets = namesInRules(chainServices, chainExternalServices, chainNodePorts,
	chainPostrouting, chainForward, chainProxyFirewall, chainFirewall)

var ipvsTargets = namesInRules(chainServices, chainPostrouting, chainForward, chainProxyFirewall,
	chainNodePort, chainIPVSFilter, chainIPVSOutFilter)

func namesInRules(names ...string) [][]byte {
	out := make([][]byte, len(names))
	for i, n := range names {
		out[i] = []byte(n + "\x00")
	}
	return out
}

// namesTarget reports whether a rule names a chain to which jumps from built-in
// chains lead, wherever it does.
func (o owner) namesTarget(expressions []byte) bool {
	return slices.ContainsFunc(o.targets(), func(t []byte) bool { return bytes.Contains(expressions, t) })
}

// isServicesRule reports whether a rule of nat KUBE-SERVICES is one of mode
// IPTables: it leads to a Service, or to the NodePorts.
func isServicesRule(spec string) bool {
	target, _ := jumpTarget(spec)
	return isServiceChain(target) || target == chainNodePorts
}

// isIPVSRule reports whether a rule of a shared chain is one of mode IPVS.
func isIPVSRule(r kernelRule) bool {
	target, _ := jumpTarget(r.spec)
	switch target {
	case chainNodePort, chainLoadBalancer, chainSourceRanges:
		return true
	}
	return asksOurSet(r.spec) || passesLoopback(r)
}

// asksOurSet reports whether a rule asks an ipset of mode IPVS.
func asksOurSet(spec string) bool {
	return strings.Contains(spec, "--match-set KUBE-") || strings.Contains(spec, "--match-set NODEPROXY-")
}

// passesLoopback reports whether a rule is the first of nat KUBE-SERVICES in mode
// IPVS, where NodePorts do not answer on loopback addresses.
func passesLoopback(r kernelRule) bool { return slices.Contains(loopbackReturns, r.hash) }

var loopbackReturns = []uint64{ruleHash("-s 127.0.0.0/8 -j RETURN"), ruleHash("-s ::1/128 -j RETURN")}

// marksOwnSource reports whether a rule of mode IPVS has connections masqueraded
// whose source is a cluster IP: while those are addresses of the node, its kernel
// gives them to the node's own connections. It must stand before what translates
// them, in whatever mode.
func marksOwnSource(spec string) bool {
	target, _ := jumpTarget(spec)
	return target == chainMarkMasq && asksOurSet(spec) && strings.Contains(spec, " src,dst")
}

// isFirewallJump reports whether a rule of a built-in chain leads to
// KUBE-PROXY-FIREWALL as in a mode. In mode IPTables it is for new connections
// only: the rules there drop whatever is not translated, which of a connection
// through IPVS is every packet.
func (o owner) isFirewallJump(spec string) bool {
	target, _ := jumpTarget(spec)
	return target == chainProxyFirewall && strings.Contains(spec, "--ctstate") == (o == modeIPTables)
}
