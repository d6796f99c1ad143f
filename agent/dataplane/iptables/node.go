package iptables

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
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
	if c.podMatch, err = PodMatch(family, n); err != nil {
		return nil, err
	}
	if c.nodePorts, err = dataplane.NodePortsOf(family, n); err != nil {
		return nil, err
	}
	c.nodePortIPs = c.inNodePortRanges(facts.interfaceIPs)
	return c, nil
}

// PodMatch is the match of an iptables rule for traffic of local pods, such as
// "-s 10.244.0.0/16". It is empty where nothing is known of this family's pods.
// The error names the field that cannot be read.
func PodMatch(family dataplane.Family, n *dataplane.Node) (string, error) {
	pods, err := dataplane.PodTrafficOf(family, n)
	switch {
	case err != nil || !pods.Known():
		return "", err
	case pods.Source.IsValid():
		return "-s " + pods.Source.String(), nil
	case pods.Prefix:
		return "-i " + pods.Interface + "+", nil
	default:
		return "-i " + pods.Interface, nil
	}
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
func (c *config) jumps() []Jump {
	jump := func(t table, from, target, note, match string) Jump {
		if note != "" {
			note = commentMatch(note)
		}
		return Jump{t, from, join(match, note, "-j "+target)}
	}
	const (
		portals  = "kubernetes service portals"
		external = "kubernetes externally-visible service portals"
		firewall = "kubernetes load balancer firewall"
	)
	out := []Jump{
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
		out = slices.DeleteFunc(out, func(j Jump) bool { return j.Rule == "-j "+chainFirewall })
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
	// foreign: other programs have rules in it, too, which stay.
	foreign bool
}

func (c *config) sharedChains() []sharedChain {
	forward := ForwardRules(c.mark)
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
		{id: chainID{nat, chainPostrouting}, fixed: PostroutingRules(c.mark, c.randomFully)},
		{id: chainID{nat, chainNodePorts}, dispatch: true},
		{id: chainID{nat, chainServices}, dispatch: true, fixed: c.nodePortTail()},
	}
	// Otherwise the chain and its jumps are the kubelet's business. kube-proxy
	// makes them anyway, without rules.
	if c.nodePorts.Localhost {
		out = append(out, sharedChain{id: chainID{filter, chainFirewall}, foreign: true, fixed: []string{
			join(commentMatch("block incoming localnet connections"), "-d 127.0.0.0/8 ! -s 127.0.0.0/8",
				"-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT", "-j DROP"),
		}})
	}
	return out
}

// ForwardRules accept what is marked to be masqueraded, and packets of accepted
// connections. They are the rules of filter KUBE-FORWARD that
// every mode has; a mark is such as 0x4000.
func ForwardRules(mark string) []string {
	return []string{
		join(commentMatch("kubernetes forwarding rules"), "-m mark --mark "+mark+"/"+mark, "-j ACCEPT"),
		join(commentMatch("kubernetes forwarding conntrack rule"), "-m conntrack --ctstate RELATED,ESTABLISHED", "-j ACCEPT"),
	}
}

// PostroutingRules masquerade what is marked. They are the rules of nat
// KUBE-POSTROUTING that every mode has, the last ones there.
func PostroutingRules(mark string, randomFully bool) []string {
	masquerade := join(commentMatch("kubernetes service traffic requiring SNAT"), "-j MASQUERADE")
	if randomFully {
		masquerade += " --random-fully"
	}
	return []string{
		"-m mark ! --mark " + mark + "/" + mark + " -j RETURN",
		// Cleared first, so that a packet that passes the stack again is not
		// masqueraded twice.
		"-j MARK --xor-mark " + mark,
		masquerade,
	}
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
