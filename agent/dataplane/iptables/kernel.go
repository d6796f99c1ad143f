package iptables

import (
	"bufio"
	"fmt"
	"io"
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
}

// kernelState is what the kernel holds in the tables nat and filter.
type kernelState struct {
	chains map[chainID]*kernelChain
}

func newKernelState() *kernelState {
	return &kernelState{chains: map[chainID]*kernelChain{}}
}

// read adds what iptables-save prints of one or several tables. The rules of
// chains of one Service are kept as a hash only, because there may be very many.
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

func (c *kernelChain) add(spec string, keep bool) {
	h := ruleHash(spec)
	c.hash = chainRule(c.hash, h)
	c.count++
	if keep {
		c.rules = append(c.rules, kernelRule{hash: h, spec: strings.Clone(spec)})
	}
}
