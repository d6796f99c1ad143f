package fixedrules

import "github.com/nodeproxy-io/nodeproxy/agent/dataplane"

// Rules are chains with all of their rules and the jumps from built-in chains to them. A rule is
// what iptables-restore reads, without "-A CHAIN".
type Rules struct {
	Chains []Chain
	// Jumps are in the order that they have in each built-in chain.
	Jumps []Jump
}

// Chain is a chain with exactly these rules, in this order.
type Chain struct {
	Table string // filter or nat
	Name  string
	// Rules may use MASQUERADE --random-fully, which is omitted if iptables does not know it.
	Rules []string
}

// Jump is a rule of a built-in chain, among rules of other programs.
type Jump struct {
	Table string // filter or nat
	Chain string // such as PREROUTING
	Rule  string
}

// Counts are the numbers of chains and rules, jumps included.
func (r *Rules) Counts() (chains, rules int) {
	rules = len(r.Jumps)
	for i := range r.Chains {
		rules += len(r.Chains[i].Rules)
	}
	return len(r.Chains), rules
}

// State compares the kernel to Rules.
type State struct {
	// Findings are all differences. Their keys begin with "iptables "; the key of a place changes
	// only with its desired or actual state.
	Findings []dataplane.Finding
	// Chains and Rules count what the kernel has of the desired chains and the jumps to them.
	Chains, Rules int
	// Warnings are problems of the variant of iptables in use, human-readable.
	Warnings []string
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

// Forward are the rules of filter KUBE-FORWARD that every mode has: they accept packets with the
// mark of what is to be masqueraded, such as 0x4000, and those of accepted connections.
func Forward(mark string) []string {
	return []string{
		`-m comment --comment "kubernetes forwarding rules" -m mark --mark ` + mark + "/" + mark + " -j ACCEPT",
		`-m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`,
	}
}

// Postrouting are the last rules of nat KUBE-POSTROUTING, which every mode has: they masquerade
// what has the mark.
func Postrouting(mark string, randomFully bool) []string {
	masquerade := `-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE`
	if randomFully {
		masquerade += " --random-fully"
	}
	return []string{
		"-m mark ! --mark " + mark + "/" + mark + " -j RETURN",
		// Cleared first, so that a packet that passes the stack again is not masqueraded twice.
		"-j MARK --xor-mark " + mark,
		masquerade,
	}
}
