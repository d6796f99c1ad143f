package iptables

import (
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// The desired state of a preserved Service may be older than the actual state. A chain that has
// rules is therefore right, whatever they are, and a port with rules in shared chains that are not desired is
// served in a newer way: none of the old rules is added to it.

func (s *scope) preserves(name dataplane.ServiceName) bool {
	_, preserved := s.preserved[name]
	return preserved
}

// newer is what the kernel has of preserved Services that is not desired, and so is
// newer.
type newer struct {
	// ports have rules in shared chains that are not desired.
	ports map[string]bool
	// chains are those of these ports, by the common part of their names.
	chains map[string]bool
	// present are the desired rules in shared chains that the kernel has.
	present map[placed]bool
}

func newerInKernel(w *desired, k *kernelState, s *scope) newer {
	out := newer{ports: map[string]bool{}, chains: map[string]bool{}, present: map[placed]bool{}}
	if len(s.preserved) == 0 {
		return out
	}
	open := map[placed]int{}
	for name := range s.preserved {
		for _, r := range w.services[name].rules() {
			open[r.placed()]++
		}
	}
	for _, c := range w.config.sharedChains() {
		have := k.chains[c.id]
		if !c.dispatch || have == nil {
			continue
		}
		for _, r := range have.rules {
			if k := (placed{c.id, r.hash}); open[k] > 0 {
				open[k]--
				out.present[k] = true
			} else if owner, ok := commentOwner(comment(r.spec)); ok && s.preserves(owner) {
				out.ports[portOf(r.spec)] = true
			}
		}
	}
	for name := range s.preserved {
		for _, r := range w.services[name].rules() {
			if target, jumps := jumpTarget(r.spec); jumps && out.ports[portOf(r.spec)] && isServiceChain(target) {
				out.chains[suffix(target)] = true
			}
		}
	}
	return out
}

// rules are those in shared chains; none of a Service that does not exist.
func (p *planned) rules() []dispatchRule {
	if p == nil {
		return nil
	}
	return p.dispatch
}

// portOf returns the port that a rule in a shared chain belongs to.
func portOf(spec string) string {
	port, _, _ := strings.Cut(comment(spec), " ")
	return port
}

// suffix is the common part of the names of a port's chains; those of endpoints, and of parts of
// them, have their own.
func suffix(chain string) string { return chain[strings.LastIndexByte(chain, '-')+1:] }

// missing returns the chains of a preserved Service that the kernel lacks, or that
// another program has emptied. Chains of a port that is served in a newer way are not
// missing, nor are inner ones, of endpoints or parts of them, unless a chain that leads to them
// is: then the kernel has other endpoints.
func (n newer) missing(p *planned, k *kernelState) []string {
	outer := map[string]bool{}
	for _, r := range p.dispatch {
		if target, jumps := jumpTarget(r.spec); jumps && isServiceChain(target) {
			outer[suffix(target)] = true
		}
	}
	var missing, inner []string
	lead := false
	for _, c := range p.chains {
		have := k.chains[chainID{nat, c.name}]
		switch {
		case have != nil && (have.count > 0 || c.rules == 0):
		case have == nil && n.chains[suffix(c.name)]:
		case have == nil && !outer[suffix(c.name)]:
			inner = append(inner, c.name)
		default:
			missing = append(missing, c.name)
			lead = lead || outer[suffix(c.name)]
		}
	}
	if lead {
		missing = append(missing, inner...)
	}
	return missing
}
