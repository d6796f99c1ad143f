package iptables

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// kernelFacts are what the rules depend on besides Services and settings.
type kernelFacts struct {
	// randomFully: iptables knows MASQUERADE --random-fully.
	randomFully bool
	// liberal: nf_conntrack_tcp_be_liberal is on, so that no packet is taken
	// as invalid for being outside the window.
	liberal bool
	// interfaceIPs are the addresses of the node's interfaces.
	interfaceIPs []netip.Addr
}

// newConfig derives from a node's settings and facts what its rules depend on.
func newConfig(family dataplane.Family, n *dataplane.Node, facts kernelFacts) (*config, error) {
	s := n.Settings
	c := &config{
		family:        family,
		masqueradeAll: *s.Masquerade.All == v1alpha1.Enabled,
		mark:          "0x" + strconv.FormatUint(1<<uint(*s.Masquerade.Bit), 16),
		randomFully:   facts.randomFully,
		dropInvalid:   !facts.liberal,
	}
	if len(n.Addresses) > 0 {
		c.nodeIP = n.Addresses[0]
	}
	var err error
	if c.podMatch, err = fixedrules.PodMatch(family, n); err != nil {
		return nil, err
	}
	if c.nodePorts, err = dataplane.NodePortsOf(family, n); err != nil {
		return nil, err
	}
	c.nodePortIPs = c.inNodePortRanges(facts.interfaceIPs)
	return c, nil
}

// sysctl is a value that rules need.
type sysctl struct {
	name, value string
	needed      func(*config) bool
	// without is what does not work if the agent cannot write it, and instead what else to do then.
	without, instead string
}

// nodeSysctls are all that the mode may set.
func nodeSysctls() []sysctl {
	return []sysctl{{
		name: "net/ipv4/conf/all/route_localnet", value: "1",
		needed:  func(c *config) bool { return c.nodePorts.Localhost },
		without: "NodePorts do not answer on 127.0.0.1", instead: "set spec.settings.nodePorts.localhost to Disabled",
	}}
}

// inNodePortRanges returns those of the interfaces' addresses that NodePorts answer on, sorted; nil
// without ranges: then rules do not name them.
func (c *config) inNodePortRanges(interfaceIPs []netip.Addr) []netip.Addr {
	if len(c.nodePorts.Ranges) == 0 {
		return nil
	}
	out := slices.DeleteFunc(slices.Clone(interfaceIPs), func(ip netip.Addr) bool { return !c.nodePorts.AnswerOn(ip) })
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

const onlyNew = "-m conntrack --ctstate NEW"

// jumps are those from built-in chains, in the order that they have there.
func (c *config) jumps() []fixedrules.Jump {
	jump := func(t table, from, target, note, match string) fixedrules.Jump {
		if note != "" {
			note = commentMatch(note)
		}
		return fixedrules.Jump{Table: t, Chain: from, Rule: join(match, note, "-j "+target)}
	}
	const (
		portals  = "kubernetes service portals"
		external = "kubernetes externally-visible service portals"
		firewall = "kubernetes load balancer firewall"
	)
	out := []fixedrules.Jump{
		jump(nat, "PREROUTING", chainServices, portals, ""),
		jump(nat, "OUTPUT", chainServices, portals, ""),
		jump(nat, "POSTROUTING", chainPostrouting, "kubernetes postrouting rules", ""),
		jump(filter, "INPUT", chainFirewall, "", ""),
		jump(filter, "INPUT", chainProxyFirewall, firewall, onlyNew),
		jump(filter, "INPUT", chainNodePorts, "kubernetes health check service ports", ""),
		jump(filter, "INPUT", chainExternalServices, external, onlyNew),
		jump(filter, "FORWARD", chainProxyFirewall, firewall, onlyNew),
		jump(filter, "FORWARD", chainForward, "kubernetes forwarding rules", ""),
		jump(filter, "FORWARD", chainServices, portals, onlyNew),
		jump(filter, "FORWARD", chainExternalServices, external, onlyNew),
		jump(filter, "OUTPUT", chainFirewall, "", ""),
		jump(filter, "OUTPUT", chainProxyFirewall, firewall, onlyNew),
		jump(filter, "OUTPUT", chainServices, portals, onlyNew),
	}
	if !c.nodePorts.Localhost {
		out = slices.DeleteFunc(out, func(j fixedrules.Jump) bool { return j.Rule == "-j "+chainFirewall })
	}
	return out
}

// sharedChain is a chain whose content does not belong to one Service.
type sharedChain struct {
	id chainID
	// fixed are its rules, in order. In a chain with dispatch rules they are
	// the last ones.
	fixed []string
	// dispatch: the chain has rules of Services, in any order, before fixed.
	dispatch bool
	// mixed: other programs have rules in it, too, which stay.
	mixed bool
}

func (c *config) sharedChains() []sharedChain {
	forward := fixedrules.Forward(c.mark)
	if c.dropInvalid {
		forward = slices.Insert(forward, 0, "-m conntrack --ctstate INVALID -j DROP")
	}
	out := []sharedChain{
		{id: chainID{filter, chainServices}, dispatch: true},
		{id: chainID{filter, chainExternalServices}, dispatch: true},
		{id: chainID{filter, chainNodePorts}, dispatch: true},
		{id: chainID{filter, chainProxyFirewall}, dispatch: true},
		{id: chainID{filter, chainForward}, fixed: forward},
		{id: chainID{nat, chainMarkMasq}, fixed: []string{"-j MARK --or-mark " + c.mark}},
		{id: chainID{nat, chainPostrouting}, fixed: fixedrules.Postrouting(c.mark, c.randomFully)},
		{id: chainID{nat, chainNodePorts}, dispatch: true},
		{id: chainID{nat, chainServices}, dispatch: true, fixed: c.nodePortTail()},
	}
	// Otherwise the chain and its jumps are the kubelet's business. kube-proxy
	// makes them anyway, without rules.
	if c.nodePorts.Localhost {
		out = append(out, sharedChain{id: chainID{filter, chainFirewall}, mixed: true, fixed: []string{
			join(commentMatch("block incoming localnet connections"), "-d 127.0.0.0/8 ! -s 127.0.0.0/8",
				"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT", "-j DROP"),
		}})
	}
	return out
}

// nodePortTail are the last rules of nat KUBE-SERVICES: what matched no Service
// address may be for a NodePort.
func (c *config) nodePortTail() []string {
	note := commentMatch("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
	if c.nodePorts.Ranges == nil {
		except := ""
		switch {
		case c.family == dataplane.IPv6:
			except = "! -d ::1/128"
		case !c.nodePorts.Localhost:
			except = "! -d 127.0.0.0/8"
		}
		return []string{join(note, "-m addrtype --dst-type LOCAL", except, "-j "+chainNodePorts)}
	}
	var out []string
	for _, ip := range c.nodePortIPs {
		out = append(out, join(note, "-d "+ip.String(), "-j "+chainNodePorts))
	}
	return out
}
