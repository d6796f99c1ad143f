package nftablesmodel

import (
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
)

// maxDepth is how many chains a packet may be in at once.
const maxDepth = 16

// validation follows the rules from a base chain.
type validation struct {
	*table
	base *chain
	// seen is how deep each chain was met.
	seen map[string]int
}

// validate checks all rules that packets can meet.
func (k *Kernel) validate() error {
	for _, t := range k.tables {
		for _, c := range t.chains {
			if c.Hook == nil {
				continue
			}
			v := &validation{t, c, map[string]int{}}
			if err := v.chain(c, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *validation) chain(c *chain, depth int) error {
	if depth >= maxDepth {
		return unix.EMLINK
	}
	if deepest, met := v.seen[c.Name]; met && deepest >= depth {
		return nil
	}
	v.seen[c.Name] = depth
	for _, r := range c.rules {
		for i := range r.steps {
			if err := v.step(&r.steps[i], depth); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v *validation) step(s *step, depth int) error {
	hook := v.base.Hook
	if s.nat && hook.Type != "nat" || s.hooks != 0 && s.hooks&(1<<hook.Number) == 0 {
		return unix.EOPNOTSUPP
	}
	if err := v.verdict(s.verdict, depth); err != nil {
		return err
	}
	if s.set == nil || !s.set.verdicts() {
		return nil
	}
	for _, e := range s.set.elements {
		if err := v.verdict(e.Verdict, depth); err != nil {
			return err
		}
	}
	return nil
}

func (v *validation) verdict(to nft.Verdict, depth int) error {
	if to.Chain == "" {
		return nil
	}
	return v.chain(v.chains[to.Chain], depth+1)
}
