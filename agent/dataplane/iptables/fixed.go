package iptables

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Fixed are chains with all of their rules and the jumps from built-in chains
// to them. Rules are as iptables-restore reads them, without "-A CHAIN".
type Fixed struct {
	Chains []FixedChain
	// Jumps are those of one built-in chain from first to last.
	Jumps []Jump
}

// FixedChain is a chain that holds these rules, in this order, and no others.
type FixedChain struct {
	Table string // filter or nat
	Name  string
	// Rules may say MASQUERADE --random-fully, which is left out of them where
	// iptables does not know it.
	Rules []string
}

// Jump is a rule of a built-in chain, among others' rules there.
type Jump struct {
	Table string // filter or nat
	Chain string // such as PREROUTING
	Rule  string
}

// FixedState is how the kernel differs from a Fixed, and how much of it the
// kernel holds.
type FixedState struct {
	// Findings are all differences. Their keys begin with "iptables "; those of
	// one place stay the same while the desired state and what is held there do.
	Findings []dataplane.Finding
	// Chains and Rules count what the kernel has of the chains that are desired,
	// jumps to them included.
	Chains, Rules int
	// Warnings say what is wrong about the variant of iptables in use, human-readable.
	Warnings []string
}

// Counts are how many chains and rules these are, jumps included.
func (f *Fixed) Counts() (chains, rules int) {
	rules = len(f.Jumps)
	for i := range f.Chains {
		rules += len(f.Chains[i].Rules)
	}
	return len(f.Chains), rules
}

// tableNamed returns the table of a name.
func tableNamed(name string) table {
	if name == nat.String() {
		return nat
	}
	return filter
}

func (c *FixedChain) id() chainID { return chainID{tableNamed(c.Table), c.Name} }
func (j *Jump) in() chainID       { return chainID{tableNamed(j.Table), j.Chain} }

// fixedDiff is how the kernel differs from a Fixed.
type fixedDiff struct {
	chains []chainDiff
	jumps  []Jump // those that are missing
}

// chainDiff is how one chain differs.
type chainDiff struct {
	chain   *FixedChain
	missing bool
	have    uint64 // hash of what the kernel has
	// beside are the rules of mode IPTables there, which stay until that mode is
	// retired; alone: the chain holds nothing else.
	beside []string
	alone  bool
}

// compareFixed returns how the kernel differs from the desired state.
func compareFixed(want *Fixed, k *kernelState) fixedDiff {
	var d fixedDiff
	for i := range want.Chains {
		c := &want.Chains[i]
		have := k.chains[c.id()]
		if have == nil {
			d.chains = append(d.chains, chainDiff{chain: c, missing: true})
			continue
		}
		beside := besideFixed(c.id(), have)
		if !holds(have, c, beside) {
			d.chains = append(d.chains, chainDiff{chain: c, have: rulesHash(have), beside: beside, alone: len(beside) == have.count})
		}
	}
	for _, j := range want.Jumps {
		hash := ruleHash(j.Rule)
		have := k.chains[j.in()]
		if have == nil || !slices.ContainsFunc(have.rules, func(r kernelRule) bool { return r.hash == hash }) {
			d.jumps = append(d.jumps, j)
		}
	}
	return d
}

// besideFixed returns the rules of mode IPTables that stay beside ours.
func besideFixed(id chainID, have *kernelChain) []string {
	if id != (chainID{nat, chainServices}) {
		return nil
	}
	var out []string
	for _, r := range have.rules {
		if isServicesRule(r.spec) {
			out = append(out, r.spec)
		}
	}
	return out
}

// merged are the rules of a chain with those of mode IPTables, which come first:
// they serve until that mode is retired, and then the other takes over at once.
// Before them are those that concern what they translate as well.
func merged(c *FixedChain, beside []string) []string {
	if len(beside) == 0 {
		return c.Rules
	}
	first, rest := split(c.Rules, marksOwnSource)
	return slices.Concat(first, beside, []string{untilRetired}, rest)
}

// untilRetired keeps what the rules of mode IPTables before it do not translate from
// ours after it: marked by those, it would be let pass although it is rejected. It
// goes with the rules before it.
const untilRetired = `-m comment --comment "kubernetes services by IPVS; NOTE: not before the rules above are gone" -j RETURN`

// holds reports whether a chain is as it should be. Rules that come first beside
// those of mode IPTables may stay there.
func holds(have *kernelChain, c *FixedChain, beside []string) bool {
	inOrder := func(specs ...string) bool {
		return slices.EqualFunc(have.rules, specs, func(r kernelRule, spec string) bool { return r.hash == ruleHash(spec) })
	}
	if len(beside) > 0 {
		return inOrder(merged(c, beside)...)
	}
	first, rest := split(c.Rules, marksOwnSource)
	return inOrder(c.Rules...) || inOrder(slices.Concat(first, rest)...)
}

// rulesHash is the hash of a chain whose rules are kept.
func rulesHash(have *kernelChain) uint64 {
	var hash uint64
	for _, r := range have.rules {
		hash = chainRule(hash, r.hash)
	}
	return hash
}

// input is the input of iptables-restore that makes up for the difference. Each
// table changes at once. Filter comes first: its rules of either mode let pass
// what is translated, and those of mode IPTables would drop what is not.
func (d *fixedDiff) input() string {
	var declare, rules [2]strings.Builder // by table; chains may lead to each other
	for _, c := range d.chains {
		in := tableNamed(c.chain.Table)
		c.write(&declare[in], &rules[in])
	}
	for _, j := range slices.Backward(d.jumps) { // so that they stand in order
		fmt.Fprintf(&rules[j.in().table], "-I %s %s\n", j.Chain, j.Rule)
	}
	var out strings.Builder
	for _, in := range []table{filter, nat} {
		if declare[in].Len()+rules[in].Len() > 0 {
			fmt.Fprintf(&out, "*%s\n%s%sCOMMIT\n", in, declare[in].String(), rules[in].String())
		}
	}
	return out.String()
}

// write writes what has to change in one chain: with thousands of rules of the
// other mode in it not as a whole.
func (c *chainDiff) write(declare, rules *strings.Builder) {
	name, add := c.chain.Name, merged(c.chain, c.beside)
	if len(c.beside) > 0 && c.alone {
		first, rest := split(c.chain.Rules, marksOwnSource)
		for _, spec := range slices.Backward(first) {
			fmt.Fprintf(rules, "-I %s %s\n", name, spec)
		}
		add = append([]string{untilRetired}, rest...)
	} else {
		fmt.Fprintf(declare, ":%s - [0:0]\n", name)
	}
	for _, spec := range add {
		fmt.Fprintf(rules, "-A %s %s\n", name, spec)
	}
}

// findings are the differences, human-readable.
func (d *fixedDiff) findings() []dataplane.Finding {
	var out []dataplane.Finding
	add := func(f found) {
		out = append(out, dataplane.Finding{Key: "iptables " + f.key(), Text: f.String()})
	}
	for _, c := range d.chains {
		f := found{kind: fixedDiffer, in: c.chain.id(), have: c.have}
		if c.missing {
			f.kind = chainMissing
		}
		for _, spec := range c.chain.Rules {
			f.want = chainRule(f.want, ruleHash(spec))
		}
		add(f)
	}
	for _, j := range d.jumps {
		add(found{kind: jumpMissing, in: j.in(), spec: j.Rule})
	}
	return out
}

// countFixed counts what the kernel has of the desired state.
func countFixed(want *Fixed, k *kernelState, d *fixedDiff) (chains, rules int) {
	for i := range want.Chains {
		id := want.Chains[i].id()
		if have := k.chains[id]; have != nil {
			chains++
			rules += have.count - len(besideFixed(id, have))
		}
	}
	return chains, rules + len(want.Jumps) - len(d.jumps)
}
