package iptables

import (
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Of a Service that is kept, the desired state may be older than what the kernel
// holds. So a chain that has rules is right, whatever they are, and a port that
// has rules in shared chains that are not desired is served in a newer way, to
// which none of the old one is added.

func (s *scope) keeps(name dataplane.ServiceName) bool {
	_, kept := s.kept[name]
	return kept
}

// newer is what the kernel has of kept Services that is not desired, and so is
// newer.
type newer struct {
	// ports are served by rules in shared chains that are not desired.
	ports map[string]bool
	// chains are those of these ports, by what their names share.
	chains map[string]bool
	// held are the rules in shared chains that are desired and that the kernel has.
	held map[placed]bool
}

// servedOtherwise returns what of the kept Services is newer in the kernel.
func servedOtherwise(w *desired, k *kernelState, s *scope) newer {
	out := newer{ports: map[string]bool{}, chains: map[string]bool{}, held: map[placed]bool{}}
	open := map[placed]int{}
	for name := range s.kept {
		for _, r := range w.services[name].rules() {
			open[r.placed()]++
		}
	}
	if len(s.kept) == 0 {
		return out
	}
	for _, c := range w.config.sharedChains() {
		have := k.chains[c.id]
		if !c.dispatch || have == nil {
			continue
		}
		for _, r := range have.rules {
			if k := (placed{c.id, r.hash}); open[k] > 0 {
				open[k]--
				out.held[k] = true
			} else if owner, ok := commentOwner(comment(r.spec)); ok && s.keeps(owner) {
				out.ports[ruleOf(r.spec)] = true
			}
		}
	}
	for name := range s.kept {
		for _, r := range w.services[name].rules() {
			if _, target, jumps := strings.Cut(r.spec, " -j "); jumps && out.ports[ruleOf(r.spec)] && isServiceChain(target) {
				out.chains[suffix(target)] = true
			}
		}
	}
	return out
}

// rules are those in shared chains; none of a Service of which nothing is
// desired.
func (p *planned) rules() []dispatchRule {
	if p == nil {
		return nil
	}
	return p.dispatch
}

// ruleOf returns the port that a rule in a shared chain belongs to.
func ruleOf(spec string) string {
	port, _, _ := strings.Cut(comment(spec), " ")
	return port
}

// suffix is what the names of the chains of one port share; those of endpoints
// have their own.
func suffix(chain string) string { return chain[strings.LastIndexByte(chain, '-')+1:] }

// missing returns the chains of a kept Service that the kernel lacks, or that
// another program has emptied. Those of a port that is served in a newer way are not
// lacking, nor are those of endpoints where nothing that jumps to them is: then
// the kernel knows other endpoints.
func (n newer) missing(p *planned, k *kernelState) []string {
	var missing, absent []string
	jumps := false
	for _, c := range p.chains {
		have := k.chains[chainID{nat, c.name}]
		endpoint := strings.HasPrefix(c.name, prefixEndpoint)
		switch {
		case have != nil && (have.count > 0 || c.rules == 0):
		case have == nil && n.chains[suffix(c.name)]:
		case have == nil && endpoint:
			absent = append(absent, c.name)
		default:
			missing = append(missing, c.name)
			jumps = jumps || !endpoint
		}
	}
	if jumps {
		missing = append(missing, absent...)
	}
	return missing
}
