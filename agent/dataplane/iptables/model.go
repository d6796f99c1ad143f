package iptables

import (
	"context"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Model stands in for the iptables programs and the kernel behind them, to compute
// the fate of packets. Package iptablesmodel has one.
type Model interface {
	// Save prints a table as iptables-save does.
	Save(table string) string
	// Restore takes the input of iptables-restore --noflush. The error is what
	// the program prints about input that it does not take.
	Restore(input string) error
	// Addresses are those of the node's interfaces.
	Addresses() []netip.Addr
}

type modeled struct{ model Model }

var _ kernel = modeled{}

func (m modeled) find(context.Context) error      { return nil }
func (m modeled) probe() error                    { return nil }
func (m modeled) others() (uint32, bool)          { return 0, false }
func (m modeled) unwatched(do func() error) error { return do() }

func (m modeled) lacks(context.Context, []string) ([]string, error) { return nil, nil }

func (m modeled) entries() (int, bool) { return 0, false }
func (m modeled) legacy() bool         { return false }
func (m modeled) randomFully() bool    { return true }

func (m modeled) warnings(context.Context) []string     { return nil }
func (m modeled) all(context.Context) ([]kernel, error) { return []kernel{m}, nil }

func (m modeled) watch(ctx context.Context, _ *atomic.Pointer[entries], _ func(dataplane.Change)) error {
	<-ctx.Done()
	return nil
}

func (m modeled) read(context.Context) (*kernelState, error) {
	state := newKernelState()
	return state, state.read(strings.NewReader(m.model.Save(nat) + m.model.Save(filter)))
}

func (m modeled) list(ctx context.Context, in chainID) ([]kernelRule, error) {
	state, err := m.read(ctx)
	if err != nil {
		return nil, err
	}
	return state.rulesIn(in)
}

func (m modeled) apply(_ context.Context, input string) error {
	err := m.model.Restore(input)
	if err == nil {
		return nil
	}
	return &toolError{program: "iptables-restore", cause: rejected, output: err.Error(), input: input, faults: readFaults(err.Error()), err: err}
}

// newKernel is the node's kernel, or the model in its place, for one of the modes.
func newKernel(family dataplane.Family, modes *ownership, o *Options) kernel {
	if o.Model != nil {
		return modeled{o.Model}
	}
	return nodeKernel(family, modes, o)
}
