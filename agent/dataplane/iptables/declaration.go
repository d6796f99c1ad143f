package iptables

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Chains that every node has. The names are kube-proxy's, so that a node is
// taken over in place and tools that know them keep working.
const (
	chainServices         = "KUBE-SERVICES"
	chainExternalServices = "KUBE-EXTERNAL-SERVICES"
	chainNodePorts        = "KUBE-NODEPORTS"
	chainPostrouting      = "KUBE-POSTROUTING"
	chainMarkMasq         = "KUBE-MARK-MASQ"
	chainForward          = "KUBE-FORWARD"
	chainProxyFirewall    = "KUBE-PROXY-FIREWALL"
	// chainFirewall is shared with the kubelet: our rule is ensured, others in
	// it are never removed.
	chainFirewall = "KUBE-FIREWALL"
)

// Prefixes of chains that belong to one port of a Service.
const (
	prefixCluster  = "KUBE-SVC-"
	prefixLocal    = "KUBE-SVL-"
	prefixExternal = "KUBE-EXT-"
	prefixFirewall = "KUBE-FW-"
	prefixEndpoint = "KUBE-SEP-"
)

// isServiceChain reports whether a nat chain belongs to one port of a Service
// or to one of its endpoints.
func isServiceChain(name string) bool {
	return strings.HasPrefix(name, prefixEndpoint) || strings.HasPrefix(name, prefixCluster) ||
		strings.HasPrefix(name, prefixLocal) || strings.HasPrefix(name, prefixExternal) ||
		strings.HasPrefix(name, prefixFirewall)
}

func portName(svc dataplane.ServiceName, port string) string {
	return strings.TrimSuffix(svc.String()+":"+port, ":")
}

// chainHash is the part of a chain's name that identifies one port of a
// Service, and for one of its endpoints if endpoint is not empty.
func chainHash(portName, protocol, endpoint string) string {
	sum := sha256.Sum256([]byte(portName + protocol + endpoint))
	return base32.StdEncoding.EncodeToString(sum[:10])
}

func protocolName(p v1alpha1.Protocol) string { return cmp.Or(strings.ToLower(string(p)), "tcp") }

// Declaration describes mode IPTables.
func Declaration() dataplane.Declaration {
	newOnly := func(chain string) dataplane.SharedRule {
		return dataplane.SharedRule{Chain: filter + "/" + chain, Rule: onlyNew + " -j " + chainProxyFirewall}
	}
	out := dataplane.Declaration{
		Mode: v1alpha1.ModeIPTables, Precedence: 10, Baseline: true, HarmlessProbe: true,
		Owns: dataplane.Owned{
			Chains: []string{
				"nat/" + chainServices, "nat/" + chainNodePorts, "nat/" + chainPostrouting, "nat/" + chainMarkMasq,
				"nat/" + prefixCluster + "*", "nat/" + prefixLocal + "*", "nat/" + prefixExternal + "*", "nat/" + prefixFirewall + "*", "nat/" + prefixEndpoint + "*",
				"filter/" + chainServices, "filter/" + chainExternalServices, "filter/" + chainNodePorts, "filter/" + chainForward, "filter/" + chainProxyFirewall,
			},
			Rules: []dataplane.SharedRule{
				newOnly("INPUT"), newOnly("FORWARD"), newOnly("OUTPUT"), {Chain: nat + "/" + chainServices, Rule: untilRemoved},
			},
		},
	}
	for _, s := range nodeSysctls() {
		out.Owns.Sysctls = append(out.Owns.Sysctls, s.name)
	}
	return out
}

// ownership distinguishes the chains and rules of one mode from those of all others, as the modes declare
// them. Modes share chains, and while a node changes from one to another, these contain rules of
// both.
type ownership struct {
	mode        v1alpha1.ProxyMode
	own, others claims
	// without are the modes that have no chains or rules of iptables.
	without map[v1alpha1.ProxyMode]bool
	// joined are the chains of other programs to which the mode adds rules.
	joined []string
}

func newOwnership(self dataplane.Declaration, modes []dataplane.Declaration, joined ...string) *ownership {
	o := &ownership{mode: self.Mode, own: newClaims(), others: newClaims(), without: map[v1alpha1.ProxyMode]bool{}, joined: joined}
	o.own.add(&self.Owns)
	for i := range modes {
		if modes[i].Mode != self.Mode {
			o.others.add(&modes[i].Owns)
			o.without[modes[i].Mode] = len(modes[i].Owns.Chains)+len(modes[i].Owns.Rules) == 0
		}
	}
	return o
}

func (o *ownership) ownsAlone(id chainID) bool   { return o.own.has(id) && !o.others.has(id) }
func (o *ownership) othersAlone(id chainID) bool { return o.others.has(id) && !o.own.has(id) }
func (o *ownership) shares(id chainID) bool      { return o.others.has(id) && o.own.has(id) }

// leads reports whether a rule leads to a chain of this mode alone.
func (o *ownership) leads(in chainID, spec string) bool { return o.own.leads(in, spec, &o.others) }

// ours reports whether only this mode has a rule.
func (o *ownership) ours(in chainID, r kernelRule) bool { return o.own.rule(in, r, &o.others) }

// theirs reports whether only another mode has a rule.
func (o *ownership) theirs(in chainID, r kernelRule) bool { return o.others.rule(in, r, &o.own) }

// namesOurs reports whether a rule, as the kernel describes it, names a chain of the mode.
func (o *ownership) namesOurs(expressions []byte) bool {
	names := func(chain string) bool { return bytes.Contains(expressions, []byte(chain+"\x00")) }
	for id := range o.own.chains {
		if names(id.name) {
			return true
		}
	}
	return slices.ContainsFunc(o.joined, names)
}

type claims struct {
	chains   map[chainID]bool
	prefixes []chainID // of chains
	sets     map[string]bool
	rules    map[placed]dataplane.SharedRule
}

func newClaims() claims {
	return claims{chains: map[chainID]bool{}, sets: map[string]bool{}, rules: map[placed]dataplane.SharedRule{}}
}

func (c *claims) add(o *dataplane.Owned) {
	id := func(name string) chainID {
		in, chain, _ := strings.Cut(name, "/")
		return chainID{in, chain}
	}
	for _, name := range o.Chains {
		if prefix, all := strings.CutSuffix(name, "*"); all {
			c.prefixes = append(c.prefixes, id(prefix))
		} else {
			c.chains[id(name)] = true
		}
	}
	for _, set := range o.Sets {
		c.sets[set] = true
	}
	for _, r := range o.Rules {
		c.rules[placed{id(r.Chain), ruleHash(r.Rule)}] = r
	}
}

func (c *claims) has(id chainID) bool {
	return c.chains[id] || slices.ContainsFunc(c.prefixes, func(p chainID) bool {
		return p.table == id.table && strings.HasPrefix(id.name, p.name)
	})
}

func (c *claims) leads(in chainID, spec string, but *claims) bool {
	target, jumps := jumpTarget(spec)
	to := chainID{in.table, target}
	return jumps && c.has(to) && !but.has(to)
}

func (c *claims) rule(in chainID, r kernelRule, but *claims) bool {
	return c.declares(in, r.hash) || c.leads(in, r.spec, but) || c.has(in) && c.asksSet(r.spec)
}

func (c *claims) declares(in chainID, hash uint64) bool {
	_, declared := c.rules[placed{in, hash}]
	return declared
}

// precedes reports whether a rule must precede those of other modes.
func (c *claims) precedes(in chainID, hash uint64) bool { return c.rules[placed{in, hash}].First }

func (c *claims) asksSet(spec string) bool {
	_, match, _ := strings.Cut(spec, "--match-set ")
	set, _, _ := strings.Cut(match, " ")
	return c.sets[set]
}

// hooked are the built-in chains that have jumps of ours.
var hooked = map[chainID]bool{
	{nat, "PREROUTING"}: true, {nat, "OUTPUT"}: true, {nat, "POSTROUTING"}: true,
	{filter, "INPUT"}: true, {filter, "FORWARD"}: true, {filter, "OUTPUT"}: true,
}
