package iptables

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
)

// kernelRule is a rule that was read from the kernel and may have to be
// removed by itself.
type kernelRule struct {
	hash uint64
	spec string // as iptables-save prints it, without "-A CHAIN"
}

// kernelChain is a chain as it was read from the kernel.
type kernelChain struct {
	hash  uint64 // of its rules in order; 0 for an empty chain
	count int
	rules []kernelRule // not kept for chains of one Service
	jumps []string     // the chains of Services that such a chain leads to
}

// kernelState is what the kernel has in the tables nat and filter.
type kernelState struct {
	chains map[chainID]*kernelChain
}

func newKernelState() *kernelState {
	return &kernelState{chains: map[chainID]*kernelChain{}}
}

// entries are how many the legacy variant's tables hold, if they hold the state:
// each rule is one, each chain two, the policy of a built-in chain one and the end
// of a table one. A table that has not been used is left out of the state.
func (k *kernelState) entries() int {
	const policiesAndEnds = 4 + 1 + 3 + 1 // of nat and filter
	n := policiesAndEnds
	for id, c := range k.chains {
		n += c.count
		if !isBuiltin(id.name) {
			n += 2
		}
	}
	return n
}

// rulesIn returns the rules of a shared chain.
func (k *kernelState) rulesIn(id chainID) ([]kernelRule, error) {
	have := k.chains[id]
	if have == nil {
		return nil, fmt.Errorf("the chain %s of table %s does not exist", id.name, id.table)
	}
	return have.rules, nil
}

// rulesOf counts the rules of a table.
func (k *kernelState) rulesOf(t table) int {
	n := 0
	for id, c := range k.chains {
		if id.table == t {
			n += c.count
		}
	}
	return n
}

func isBuiltin(chain string) bool {
	return slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, chain)
}

// read adds what iptables-save prints of one or several tables. The rules of
// chains of one Service are kept as a hash only, because there may be very many.
// A table that iptables-save leaves out is an error: taken for empty, its rules
// would be written anew over those in use, and its jumps once more each time.
func (k *kernelState) read(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	var (
		in      table
		known   bool
		id      chainID
		current *kernelChain
	)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "#"):
			if name, ok := unprintable(line); ok && (name == filter.String() || name == nat.String()) {
				return fmt.Errorf(`iptables-save does not print the table %s, because somebody has put rules into its chains that iptables does not know; find them with "nft list ruleset" on the node and move them to a table of their own; until then our rules stay as they are`, name)
			}
		case strings.HasPrefix(line, "*"):
			in, known = filter, line == "*filter" || line == "*nat"
			if line == "*nat" {
				in = nat
			}
			current, id = nil, chainID{}
		case !known:
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			k.chains[chainID{in, strings.Clone(name)}] = &kernelChain{}
			current = nil
		case strings.HasPrefix(line, "-A "):
			name, spec, _ := strings.Cut(line[3:], " ")
			if current == nil || name != id.name {
				id = chainID{in, name}
				if current = k.chains[id]; current == nil {
					return fmt.Errorf("iptables-save prints a rule of chain %s before the chain", name)
				}
			}
			current.add(spec, !(in == nat && isServiceChain(name)))
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the output of iptables-save: %w", err)
	}
	return nil
}

// unprintable returns the table that a comment of iptables-save says it leaves
// out. The program succeeds all the same. A table of which it only leaves out
// built-in chains of others is none.
func unprintable(comment string) (string, bool) {
	name, found := strings.CutPrefix(comment, "# Table `")
	if !found {
		return "", false
	}
	name, rest, found := strings.Cut(name, "'")
	return name, found && strings.HasPrefix(rest, " is incompatible")
}

func (c *kernelChain) add(spec string, keep bool) {
	const jump = "-j " // printed last
	h := ruleHash(spec)
	c.hash = chainRule(c.hash, h)
	c.count++
	if keep {
		c.rules = append(c.rules, kernelRule{hash: h, spec: strings.Clone(spec)})
	} else if i := strings.LastIndex(spec, jump); i >= 0 && isServiceChain(spec[i+len(jump):]) {
		c.jumps = append(c.jumps, strings.Clone(spec[i+len(jump):]))
	}
}

// ledTo returns the chains of Services that rules in shared chains lead to.
func (k *kernelState) ledTo(rules []dispatchRule) []plannedChain {
	var (
		out  []plannedChain
		open []string
	)
	for _, r := range rules {
		target, _ := jumpTarget(r.spec)
		open = append(open, target)
	}
	seen := map[string]bool{}
	for len(open) > 0 {
		name := open[len(open)-1]
		open = open[:len(open)-1]
		have := k.chains[chainID{nat, name}]
		if have == nil || seen[name] || !isServiceChain(name) {
			continue
		}
		seen[name] = true
		out = append(out, plannedChain{name: name, hash: have.hash, rules: have.count})
		open = append(open, have.jumps...)
	}
	return out
}

// insert notes that rules have been put at the head of chains whose rules are kept. The hash
// of such a chain is not used.
func (k *kernelState) insert(rules ...dispatchRule) {
	byChain := map[chainID][]kernelRule{}
	for _, r := range slices.Backward(rules) {
		byChain[r.in] = append(byChain[r.in], kernelRule{hash: r.hash, spec: r.spec})
	}
	for id, list := range byChain {
		c := k.chains[id]
		c.count += len(list)
		c.rules = append(list, c.rules...)
	}
}
