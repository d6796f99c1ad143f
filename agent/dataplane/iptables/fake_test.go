package iptables

import (
	"context"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
)

// fakeKernel is a model of the kernel that counts what is done to it, and fails
// where a test asks for it.
type fakeKernel struct {
	modeled
	tables   *iptablesmodel.Kernel
	fail     error    // returned by the next apply
	writes   []string // inputs that were not empty
	reads    int
	unread   error    // returned by read
	unlisted error    // returned by list
	warn     []string // about the variant
	other    *uint32  // counts what others write; nil: it does not report
}

func newFakeKernel() *fakeKernel {
	tables := iptablesmodel.NewKernel()
	return &fakeKernel{modeled: modeled{tables}, tables: tables}
}

func (k *fakeKernel) warnings(context.Context) []string     { return k.warn }
func (k *fakeKernel) all(context.Context) ([]kernel, error) { return []kernel{k}, nil }

func (k *fakeKernel) others() (uint32, bool) {
	if k.other == nil {
		return 0, false
	}
	return *k.other, true
}

func (k *fakeKernel) read(context.Context) (*kernelState, error) {
	k.reads++
	if k.unread != nil {
		return nil, k.unread
	}
	state := newKernelState()
	return state, state.read(strings.NewReader(k.save()))
}

func (k *fakeKernel) list(ctx context.Context, in chainID) ([]kernelRule, error) {
	if k.unlisted != nil {
		return nil, k.unlisted
	}
	return k.modeled.list(ctx, in)
}

// save prints the tables as iptables-save does.
func (k *fakeKernel) save() string { return k.tables.Save("filter") + k.tables.Save("nat") }

func (k *fakeKernel) apply(ctx context.Context, input string) error {
	if err := k.fail; err != nil {
		k.fail = nil
		return err
	}
	if input == "" {
		return nil
	}
	k.writes = append(k.writes, input)
	return k.modeled.apply(ctx, input)
}

// chain returns the rules of a chain.
func (k *fakeKernel) chain(t *testing.T, in table, name string) []string {
	t.Helper()
	rules, ok := k.tables.Chain(in, name)
	if !ok {
		t.Fatalf("no chain %s in %s:\n%s", name, in, k.save())
	}
	return rules
}

// set gives a chain these rules, whatever it had.
func (k *fakeKernel) set(t *testing.T, id chainID, rules ...string) {
	t.Helper()
	if err := k.tables.SetChain(id.table, id.name, rules...); err != nil {
		t.Fatal(err)
	}
}

// chains lists all chains.
func (k *fakeKernel) chains() []chainID {
	var out []chainID
	for _, in := range []table{filter, nat} {
		for _, name := range k.tables.Chains(in) {
			out = append(out, chainID{in, name})
		}
	}
	return out
}
