package iptables

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestFixedRules holds the rules that belong to no Service against the settings
// and facts that change them.
func TestFixedRules(t *testing.T) {
	const (
		invalid  = "KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP"
		snat     = "KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE"
		firewall = "KUBE-FIREWALL -m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
		tail     = "KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\" -m addrtype --dst-type LOCAL "
	)
	rules := func(mark string, extra ...string) []string {
		return slices.Concat(extra, []string{
			"KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark " + mark + "/" + mark + " -j ACCEPT",
			"KUBE-FORWARD -m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
			"KUBE-MARK-MASQ -j MARK --or-mark " + mark,
			"KUBE-POSTROUTING -m mark ! --mark " + mark + "/" + mark + " -j RETURN",
			"KUBE-POSTROUTING -j MARK --xor-mark " + mark,
		})
	}
	const mark, otherMark = "0x4000", "0x20"
	for name, tt := range map[string]struct {
		family dataplane.Family
		facts  kernelFacts
		edit   func(*v1alpha1.ProxySettings)
		want   []string
	}{
		"defaults": {
			dataplane.IPv4, kernelFacts{randomFully: true}, nil,
			rules(mark, invalid, snat+" --random-fully", firewall, tail+"-j KUBE-NODEPORTS"),
		},
		"IPv6": {
			dataplane.IPv6, kernelFacts{randomFully: true}, nil,
			rules(mark, invalid, snat+" --random-fully", tail+"! -d ::1/128 -j KUBE-NODEPORTS"),
		},
		"old iptables": {
			dataplane.IPv4, kernelFacts{}, nil,
			rules(mark, invalid, snat, firewall, tail+"-j KUBE-NODEPORTS"),
		},
		"nf_conntrack_tcp_be_liberal": {
			dataplane.IPv4, kernelFacts{randomFully: true, liberal: true}, nil,
			rules(mark, snat+" --random-fully", firewall, tail+"-j KUBE-NODEPORTS"),
		},
		"another mark, not on localhost": {
			dataplane.IPv4, kernelFacts{randomFully: true},
			func(s *v1alpha1.ProxySettings) {
				s.Masquerade.Bit, s.NodePorts.Localhost = new(int32(5)), new(v1alpha1.Disabled)
			},
			rules(otherMark, invalid, snat+" --random-fully", tail+"! -d 127.0.0.0/8 -j KUBE-NODEPORTS"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.edit == nil {
				tt.edit = func(*v1alpha1.ProxySettings) {}
			}
			node := testNode(tt.edit)
			c, err := newConfig(tt.family, &node, tt.facts)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, chain := range c.sharedChains() {
				for _, spec := range chain.fixed {
					got = append(got, chain.id.name+" "+spec)
				}
			}
			slices.Sort(got)
			slices.Sort(tt.want)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
