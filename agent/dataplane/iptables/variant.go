package iptables

import (
	"cmp"
	"fmt"
	"io"
	"strings"
)

// Variant is one of the two implementations behind the name iptables. The
// kernel stores their rules separately and applies both.
type Variant string

// Variants, as they are named by "iptables --version".
const (
	VariantNFT    Variant = "nf_tables"
	VariantLegacy Variant = "legacy"
)

// other returns the other variant.
func (v Variant) other() Variant {
	if v == VariantLegacy {
		return VariantNFT
	}
	return VariantLegacy
}

// suffix ends the names of programs of the variant, such as iptables-nft.
func (v Variant) suffix() string {
	if v == VariantLegacy {
		return "-legacy"
	}
	return "-nft"
}

// variantOf returns the variant that "iptables --version" prints. Programs
// older than 1.8 name none and are of the legacy variant.
func variantOf(version string) Variant {
	if strings.Contains(version, string(VariantNFT)) {
		return VariantNFT
	}
	return VariantLegacy
}

// Chains by which the kubelet shows which variant it uses. Only newer kubelets
// make the first.
const (
	chainHint   = "KUBE-IPTABLES-HINT"
	chainCanary = "KUBE-KUBELET-CANARY"
)

// traces are what is found in one variant of those who use iptables.
type traces struct {
	hint   bool // of the kubelet, meant to be found by others
	canary bool // of the kubelet
	proxy  int  // chains of a proxy, ours or kube-proxy's
	kube   bool // any chain of Kubernetes
	rules  int
}

func (t *traces) read(r io.Reader) error {
	return eachLine(r, func(in table, line string) error {
		switch line[0] {
		case '-':
			t.rules++
		case ':':
			name, _, _ := strings.Cut(line[1:], " ")
			t.add(chainID{in, name})
		}
		return nil
	})
}

func (t *traces) add(id chainID) {
	t.kube = t.kube || strings.HasPrefix(id.name, "KUBE-")
	switch {
	case id.name == chainCanary:
		t.canary = true
	case id.name == chainHint && id.table == "mangle":
		t.hint = true
	case declared.own.has(id):
		t.proxy++
	}
}

// declared is what mode IPTables declares.
var declared = newOwnership(Declaration(), nil, chainFirewall)

// prefer compares what is found in the two variants, the most reliable indicator first. It
// returns an empty string where they are alike. Last comes the mere number of
// rules, which shows what the node's administrator uses.
func prefer(nft, legacy traces) Variant {
	c := cmp.Or(
		cmp.Compare(number(nft.hint), number(legacy.hint)),
		cmp.Compare(number(nft.canary), number(legacy.canary)),
		cmp.Compare(number(nft.proxy > 0), number(legacy.proxy > 0)),
		cmp.Compare(number(nft.kube), number(legacy.kube)),
		cmp.Compare(nft.rules, legacy.rules))
	switch {
	case c > 0:
		return VariantNFT
	case c < 0:
		return VariantLegacy
	default:
		return ""
	}
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// variantWarnings report problems of the variant in use, given what is
// found of one IP family in the one in use and in the other.
func variantWarnings(use Variant, command string, mine, others traces) []string {
	var out []string
	if others.hint && !mine.hint {
		out = append(out, fmt.Sprintf("the kubelet has its rules in the %s variant of iptables, but this agent selected the %s variant at startup; restart the agent to move to %s, then run \"nodeproxy-agent cleanup --iptables-variant %s\" on the node",
			use.other(), use, use.other(), use))
	}
	if others.proxy > 0 {
		out = append(out, fmt.Sprintf("rules of a Kubernetes proxy are left in the %s variant of iptables (%s-save shows %d of its chains) and act on Services beside those in the %s variant that is used; if none runs there any more, remove them with \"nodeproxy-agent cleanup --iptables-variant %s\" on the node",
			use.other(), command, others.proxy, use, use.other()))
	}
	return out
}
