// Package iptablesmodel is a model of what is behind the iptables programs: a
// kernel that takes the input of iptables-restore and computes the fate of a
// packet. It knows no code of ours, only what the programs and the kernel do, so
// that tests compare planned rules to their purpose, and tracers show their
// effect. It rejects what it does not know.
package iptablesmodel

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

type chainID struct{ table, name string }

// Kernel holds the tables nat and filter of one IP family. Its methods are not
// called concurrently.
type Kernel struct {
	// Refuse selects lines of input that this kernel rejects. Nil: it takes
	// all that it knows.
	Refuse func(line string) bool
	// Mute: it does not report which lines those were.
	Mute bool
	// Balancer is what it has besides. Nil: nothing.
	Balancer Balancer

	chains    map[chainID][]*rule
	addresses []netip.Addr
	seen      map[seenKey]time.Duration
	now       time.Duration
}

// builtIn are the chains that the kernel itself enters.
var builtIn = map[string][]string{
	"filter": {"INPUT", "FORWARD", "OUTPUT"},
	"nat":    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
}

// NewKernel makes the kernel of a node with the given addresses besides those
// of the loopback interface.
func NewKernel(addresses ...netip.Addr) *Kernel {
	k := &Kernel{chains: map[chainID][]*rule{}, addresses: addresses, seen: map[seenKey]time.Duration{}}
	for table, names := range builtIn {
		for _, name := range names {
			k.chains[chainID{table, name}] = nil
		}
	}
	return k
}

// Addresses are those of the node's interfaces.
func (k *Kernel) Addresses() []netip.Addr {
	return append([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}, k.addresses...)
}

// SetAddresses gives the node's interfaces other addresses.
func (k *Kernel) SetAddresses(addresses ...netip.Addr) { k.addresses = addresses }

// local reports whether packets to a stay on the node.
func (k *Kernel) local(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains(k.addresses, a) || k.Balancer != nil && k.Balancer.Bound(a)
}

// Save prints a table as iptables-save does.
func (k *Kernel) Save(table string) string {
	var out strings.Builder
	out.WriteString("*" + table + "\n")
	names := k.Chains(table)
	for _, n := range names {
		out.WriteString(":" + n + " - [0:0]\n")
	}
	for _, n := range names {
		for _, r := range k.chains[chainID{table, n}] {
			out.WriteString("-A " + n + " " + r.text + "\n")
		}
	}
	out.WriteString("COMMIT\n")
	return out.String()
}

// Chains lists the names of a table's chains, sorted.
func (k *Kernel) Chains(table string) []string {
	var names []string
	for id := range k.chains {
		if id.table == table {
			names = append(names, id.name)
		}
	}
	slices.Sort(names)
	return names
}

// Chain returns the rules of a chain as they were written, and whether there is
// such a chain.
func (k *Kernel) Chain(table, name string) ([]string, bool) {
	rules, ok := k.chains[chainID{table, name}]
	var out []string
	for _, r := range rules {
		out = append(out, r.text)
	}
	return out, ok
}

// SetChain replaces the rules of a chain, or makes it.
func (k *Kernel) SetChain(table, name string, specs ...string) error {
	rules := make([]*rule, len(specs))
	for i, spec := range specs {
		var err error
		if rules[i], err = parseRule(spec); err != nil {
			return err
		}
	}
	k.chains[chainID{table, name}] = rules
	return nil
}

// Restore takes the input of iptables-restore --noflush: section by section,
// each as a whole or not at all. The error is what the program prints about rejected input.
func (k *Kernel) Restore(input string) error {
	var (
		work   map[chainID][]*rule
		table  string
		faults []string // of the section
	)
	for i, line := range strings.Split(input, "\n") {
		switch {
		case line == "":
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			if builtIn[table] == nil {
				return fmt.Errorf("line %d failed: unknown table %s", i+1, table)
			}
			work, faults = maps.Clone(k.chains), nil
		case work == nil:
			return fmt.Errorf("line %d failed: outside of a table: %s", i+1, line)
		case line == "COMMIT" && len(faults) > 0:
			if k.Mute {
				return errors.New("some line refused")
			}
			return errors.New(strings.Join(faults, "\n"))
		case line == "COMMIT":
			if err := errors.Join(checkJumps(work), k.checkSets(work)); err != nil {
				return fmt.Errorf("line %d failed: %w", i+1, err)
			}
			k.chains, work = work, nil
		case k.Refuse != nil && k.Refuse(line):
			faults = append(faults, fmt.Sprintf("line %d failed, line refused: %s", i+1, line))
		default:
			if err := takeLine(work, table, line); err != nil {
				return fmt.Errorf("line %d failed: %w: %s", i+1, err, line)
			}
		}
	}
	if work != nil {
		return fmt.Errorf("table %s without COMMIT", table)
	}
	return nil
}

func takeLine(chains map[chainID][]*rule, table, line string) error {
	if line == "-S" { // it lists the table
		return nil
	}
	if chain, ok := strings.CutPrefix(line, ":"); ok {
		name, _, _ := strings.Cut(chain, " ")
		if len(name) > maxChainName {
			return fmt.Errorf("chain name `%s' too long (must be under %d chars)", name, maxChainName+1)
		}
		chains[chainID{table, name}] = nil
		return nil
	}
	op, rest, _ := strings.Cut(line, " ")
	name, spec, _ := strings.Cut(rest, " ")
	return edit(chains, chainID{table, name}, op, spec)
}

// edit changes one chain. Chains may be shared with a state before, so they are
// copied rather than changed in place.
func edit(chains map[chainID][]*rule, id chainID, op, spec string) error {
	have, ok := chains[id]
	if !ok {
		return fmt.Errorf("no chain %s in %s", id.name, id.table)
	}
	if op == "-X" {
		if spec != "" || slices.Contains(builtIn[id.table], id.name) {
			return fmt.Errorf("cannot delete chain %s: it is built in, or more follows its name", id.name)
		}
		if len(have) > 0 {
			return fmt.Errorf("chain %s is not empty", id.name)
		}
		delete(chains, id) // checkJumps rejects it if the chain is in use
		return nil
	}
	r, err := parseRule(spec)
	if err != nil {
		return err
	}
	switch op {
	case "-A":
		chains[id] = append(slices.Clip(have), r)
	case "-I":
		chains[id] = append([]*rule{r}, have...)
	case "-D":
		i := slices.IndexFunc(have, r.same)
		if i < 0 {
			return fmt.Errorf("no such rule in %s", id.name)
		}
		chains[id] = slices.Concat(have[:i], have[i+1:])
	default:
		return fmt.Errorf("unknown command %s", op)
	}
	return nil
}

func checkJumps(chains map[chainID][]*rule) error {
	for id, rules := range chains {
		for _, r := range rules {
			if r.verdict != jump {
				continue
			}
			if _, ok := chains[chainID{id.table, r.target}]; !ok {
				return fmt.Errorf("%s jumps to %s, which does not exist", id.name, r.target)
			}
		}
	}
	return nil
}
