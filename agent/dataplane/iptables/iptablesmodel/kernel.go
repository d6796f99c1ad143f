package iptablesmodel

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

type chainID struct{ table, name string }

// Kernel is a model of the tables nat and filter of one IP family. Its methods are not
// called concurrently.
type Kernel struct {
	// Reject selects lines of input that this kernel rejects. Nil: it takes
	// all that it knows.
	Reject func(line string) bool
	// RejectSilently: it does not report which lines those were.
	RejectSilently bool
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

// Local reports whether packets to a stay on the node.
func (k *Kernel) Local(a netip.Addr) bool {
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
			if k.RejectSilently {
				return errors.New("some line rejected")
			}
			return errors.New(strings.Join(faults, "\n"))
		case line == "COMMIT":
			if err := errors.Join(checkJumps(work), k.checkSets(work)); err != nil {
				return fmt.Errorf("line %d failed: %w", i+1, err)
			}
			k.chains, work = work, nil
		case k.Reject != nil && k.Reject(line):
			faults = append(faults, fmt.Sprintf("line %d failed, line rejected: %s", i+1, line))
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

// Balancer is what a kernel has besides its tables: virtual servers, the addresses
// of a device of theirs, and ipsets.
type Balancer interface {
	// Name is the table in steps through virtual servers.
	Name() string
	// Bound reports whether a is an address of the node besides those of its
	// other interfaces.
	Bound(a netip.Addr) bool
	// Choose returns the real servers that a new connection may get, one as
	// probably as another; the zero one means a rejection, as do none. Served
	// is false where the destination is no virtual server.
	Choose(p kernelmodel.Packet) (reals []netip.AddrPort, served bool)
	// HasSet reports whether there is an ipset of that name.
	HasSet(set string) bool
	// InSet reports whether an ipset has the parts of p that directions name: src or dst
	// for each of its dimensions.
	InSet(set string, directions []string, p kernelmodel.Packet) (bool, error)
}

// balance does what the Balancer does to packets that are about to be delivered to the
// node, or have just left one of its processes.
func (w *walk) balance(live []*flow) []*flow {
	if w.Balancer == nil {
		return live
	}
	return w.where(live, func(f *flow) bool { return f.packet.State == "NEW" }, func(flows []*flow) []*flow {
		var out []*flow
		for _, f := range flows {
			out = append(out, w.choose(f)...)
		}
		return out
	})
}

// choose splits a flow by the real servers that it may get.
func (w *walk) choose(f *flow) []*flow {
	reals, served := w.Balancer.Choose(f.packet)
	reject := func(f *flow, why string) {
		f.ended = kernelmodel.Rejected
		f.path = append(f.path, kernelmodel.Step{
			Kind: kernelmodel.VirtualServer, Table: w.Balancer.Name(), Chain: f.packet.Destination.String(), Rule: why, Target: kernelmodel.Reject,
		})
	}
	switch {
	case !served:
		return []*flow{f}
	case len(reals) == 0:
		reject(f, "it has no real server")
		return []*flow{f}
	}
	var out []*flow
	for _, real := range reals {
		x := f.clone()
		x.share /= float64(len(reals))
		if !real.IsValid() {
			reject(x, "its scheduler chooses a real server of weight 0")
			out = append(out, x)
			continue
		}
		x.virtual, x.packet.Destination = f.packet.Destination, real
		x.path = append(x.path, kernelmodel.Step{
			Kind: kernelmodel.VirtualServer, Table: w.Balancer.Name(), Chain: f.packet.Destination.String(),
			Rule: "real server " + real.String(), Target: real.String(), To: real,
		})
		out = append(out, x)
	}
	return out
}

// inSet evaluates --match-set, whose value is the name and the directions.
func (w *walk) inSet(m *match, f *flow) bool {
	if w.Balancer == nil {
		w.fail("an ipset without a model of ipsets: %s", m.value)
		return false
	}
	in, err := w.Balancer.InSet(m.value, m.list, f.packet)
	if err != nil {
		w.fail("%v", err)
	}
	return in
}

// isVirtual reports whether the virtual server that a packet was sent to is that of an
// option of a match.
func (f *flow) isVirtual(option string, m *match) bool {
	switch option {
	case "--vaddr":
		return m.prefix.Contains(f.virtual.Addr())
	case "--vproto":
		return m.value == f.packet.Protocol
	default:
		return m.number == uint64(f.virtual.Port())
	}
}

// checkSets rejects rules that ask an ipset which does not exist.
func (k *Kernel) checkSets(chains map[chainID][]*rule) error {
	for id, rules := range chains {
		for _, r := range rules {
			if m, ok := r.matches["--match-set"]; ok && (k.Balancer == nil || !k.Balancer.HasSet(m.value)) {
				return fmt.Errorf("%s: Set %s doesn't exist", id.name, m.value)
			}
		}
	}
	return nil
}

// AsksSet reports whether some rule asks an ipset, which the kernel does not
// delete then.
func (k *Kernel) AsksSet(set string) bool {
	for _, rules := range k.chains {
		if slices.ContainsFunc(rules, func(r *rule) bool { return r.matches["--match-set"].value == set }) {
			return true
		}
	}
	return false
}

func readDirections(text string) ([]string, error) {
	list := strings.Split(text, ",")
	for _, d := range list {
		if d != "src" && d != "dst" {
			return nil, fmt.Errorf("unknown direction %s", d)
		}
	}
	return list, nil
}
