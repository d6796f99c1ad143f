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
	rules []kernelRule // not for chains of one Service: these are many
	jumps []string     // from such a chain to others
}

// has reports whether a chain that is not of one Service, or nil, has a rule.
func (c *kernelChain) has(hash uint64) bool {
	return c != nil && slices.ContainsFunc(c.rules, func(r kernelRule) bool { return r.hash == hash })
}

func (c *kernelChain) equals(specs []string) bool {
	return c.count == len(specs) && c.hash == hashOf(specs)
}

// kernelState is what the kernel has in the tables nat and filter.
type kernelState struct {
	chains map[chainID]*kernelChain
	since  moment // when it was read, if that matters
}

func newKernelState() *kernelState {
	return &kernelState{chains: map[chainID]*kernelChain{}}
}

// entries are how many the legacy variant's tables have in this state:
// each rule is one, each chain two, the policy of a built-in chain one and the end
// of a table one. A table that has not been used is not part of the state.
func (k *kernelState) entries() int {
	const policiesAndEnds = 4 + 1 + 3 + 1 // of nat and filter
	n := policiesAndEnds
	for id, c := range k.chains {
		n += c.count
		if !slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, id.name) {
			n += 2
		}
	}
	return n
}

func (k *kernelState) rulesIn(id chainID) ([]kernelRule, error) {
	have := k.chains[id]
	if have == nil {
		return nil, fmt.Errorf("the chain %s of table %s does not exist", id.name, id.table)
	}
	return have.rules, nil
}

func (k *kernelState) rulesOf(t table) int {
	n := 0
	for id, c := range k.chains {
		if id.table == t {
			n += c.count
		}
	}
	return n
}

// eachLine calls do for each line of iptables-save, with its table.
func eachLine(r io.Reader, do func(in table, line string) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	in := ""
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			continue
		}
		if line[0] == '*' {
			in = line[1:]
		}
		if err := do(in, line); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the output of iptables-save: %w", err)
	}
	return nil
}

// read adds what iptables-save prints of one or several tables. Chains of one Service only get a
// hash, because their rules may be very many.
// A table that iptables-save omits is an error: taken for empty, its rules
// would be written over those in use, and its jumps once more each time.
func (k *kernelState) read(r io.Reader) error {
	var (
		id      chainID
		current *kernelChain
	)
	return eachLine(r, func(in table, line string) error {
		switch {
		case line[0] == '#':
			if name, ok := unprintable(line); ok && (name == filter || name == nat) {
				return fmt.Errorf(`iptables-save does not print the table %s, because another program has put rules into its chains that iptables does not know; find them with "nft list ruleset" on the node and move them to a table of their own; until then our rules stay as they are`, name)
			}
		case in != filter && in != nat:
		case line[0] == ':':
			name, _, _ := strings.Cut(line[1:], " ")
			k.chains[chainID{in, strings.Clone(name)}] = &kernelChain{}
			current = nil
		case strings.HasPrefix(line, "-A "):
			name, spec, _ := strings.Cut(line[3:], " ")
			if current == nil || id != (chainID{in, name}) {
				id = chainID{in, name}
				if current = k.chains[id]; current == nil {
					return fmt.Errorf("iptables-save prints a rule of chain %s before the chain", name)
				}
			}
			current.add(spec, !(in == nat && isServiceChain(name)))
		}
		return nil
	})
}

// unprintable returns the table that iptables-save omits according to a comment of its. It
// succeeds nevertheless. Omitting only built-in chains of others does not count.
func unprintable(comment string) (string, bool) {
	name, found := strings.CutPrefix(comment, "# Table `")
	if !found {
		return "", false
	}
	name, rest, found := strings.Cut(name, "'")
	return name, found && strings.HasPrefix(rest, " is incompatible")
}

func (c *kernelChain) add(spec string, withRules bool) {
	const jump = "-j " // printed last
	h := ruleHash(spec)
	c.hash = chainRule(c.hash, h)
	c.count++
	if withRules {
		c.rules = append(c.rules, kernelRule{hash: h, spec: spec}) // nearly all of its line
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

// insert notes rules that were put at the head of shared chains. The hash
// of such a chain is not used afterwards.
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
