package iptables

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// fakeKernel is a model of the kernel's tables nat and filter. It holds rules
// as text and takes what iptables-restore takes of it, section by section, with
// the kernel's own refusals: unknown chains, rules that are not there, chains
// that are still jumped to.
type fakeKernel struct {
	rules  map[chainID][]string
	refuse func(line string) bool // lines that this kernel does not take
	mute   bool                   // it does not say which lines
	fail   error                  // returned by the next apply
	writes []string               // inputs that changed something
}

func newFakeKernel() *fakeKernel {
	k := &fakeKernel{rules: map[chainID][]string{}}
	for in, names := range map[table][]string{
		nat:    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
		filter: {"INPUT", "FORWARD", "OUTPUT"},
	} {
		for _, n := range names {
			k.rules[chainID{in, n}] = nil
		}
	}
	return k
}

func (k *fakeKernel) find(context.Context) error { return nil }
func (k *fakeKernel) probe() error               { return nil }
func (k *fakeKernel) describe() string           { return "1.8.9 (nf_tables)" }
func (k *fakeKernel) legacy() bool               { return false }
func (k *fakeKernel) randomFully() bool          { return true }

func (k *fakeKernel) read(context.Context) (*kernelState, error) {
	state := newKernelState()
	return state, state.read(strings.NewReader(k.save()))
}

// save prints the tables as iptables-save does.
func (k *fakeKernel) save() string {
	var out strings.Builder
	for _, in := range []table{filter, nat} {
		out.WriteString("*" + in.String() + "\n")
		var names []string
		for id := range k.rules {
			if id.table == in {
				names = append(names, id.name)
			}
		}
		slices.Sort(names)
		for _, n := range names {
			out.WriteString(":" + n + " - [0:0]\n")
		}
		for _, n := range names {
			for _, spec := range k.rules[chainID{in, n}] {
				out.WriteString("-A " + n + " " + spec + "\n")
			}
		}
		out.WriteString("COMMIT\n")
	}
	return out.String()
}

func (k *fakeKernel) insert(h hook) error {
	k.rules[h.in] = slices.Insert(k.rules[h.in], 0, h.spec)
	k.writes = append(k.writes, "insert "+h.in.name)
	return nil
}

func (k *fakeKernel) apply(_ context.Context, input string) error {
	if err := k.fail; err != nil {
		k.fail = nil
		return err
	}
	if input == "" {
		return nil
	}
	k.writes = append(k.writes, input)
	var (
		work   map[chainID][]string
		faults []string
	)
	in := filter
	for i, line := range strings.Split(input, "\n") {
		switch {
		case line == "*filter" || line == "*nat":
			in, work = filter, map[chainID][]string{}
			if line == "*nat" {
				in = nat
			}
			for id, rules := range k.rules {
				work[id] = slices.Clone(rules)
			}
		case line == "COMMIT" && len(faults) > 0:
			if k.mute {
				return refuseInput("some line refused")
			}
			return refuseInput("%s", strings.Join(faults, "\n"))
		case line == "COMMIT":
			if err := checkJumps(work); err != nil {
				return err
			}
			k.rules = work
		case line != "":
			if k.refuse != nil && k.refuse(line) {
				faults = append(faults, fmt.Sprintf("line %d failed, line refused: %s", i+1, line))
				continue
			}
			if err := applyLine(work, in, line); err != nil {
				return err
			}
		}
	}
	return nil
}

func refuseInput(format string, args ...any) error {
	output := fmt.Sprintf(format, args...)
	return &toolError{program: "iptables-restore", cause: refused, output: output, faults: readFaults(output)}
}

func applyLine(rules map[chainID][]string, in table, line string) error {
	if name, ok := strings.CutPrefix(line, ":"); ok {
		name, _, _ = strings.Cut(name, " ")
		rules[chainID{in, name}] = nil
		return nil
	}
	op, rest, _ := strings.Cut(line, " ")
	name, spec, _ := strings.Cut(rest, " ")
	id := chainID{in, name}
	have, ok := rules[id]
	if !ok {
		return refuseInput("no chain %s: %s", name, line)
	}
	switch op {
	case "-A":
		rules[id] = append(have, spec)
	case "-I":
		rules[id] = slices.Insert(have, 0, spec)
	case "-D":
		h := ruleHash(spec)
		i := slices.IndexFunc(have, func(s string) bool { return ruleHash(s) == h })
		if i < 0 {
			return refuseInput("no such rule: %s", line)
		}
		rules[id] = slices.Delete(have, i, i+1)
	case "-X":
		if len(have) > 0 {
			return refuseInput("chain not empty: %s", line)
		}
		delete(rules, id) // checkJumps refuses it if the chain is in use
	default:
		return refuseInput("unknown: %s", line)
	}
	return nil
}

// checkJumps refuses jumps to chains that do not exist.
func checkJumps(rules map[chainID][]string) error {
	for id, specs := range rules {
		for _, spec := range specs {
			target, ok := jumpTarget(spec)
			if !ok || !strings.HasPrefix(target, "KUBE-") {
				continue
			}
			if _, ok := rules[chainID{id.table, target}]; !ok {
				return refuseInput("%s jumps to %s, which does not exist", id.name, target)
			}
		}
	}
	return nil
}

// chain returns the rules of a chain, comments taken out.
func (k *fakeKernel) chain(t *testing.T, in table, name string) []string {
	t.Helper()
	rules, ok := k.rules[chainID{in, name}]
	if !ok {
		t.Fatalf("no chain %s in %s:\n%s", name, in, k.save())
	}
	return rules
}
