package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// refusal is why the kernel does not hold what is wanted of a Service.
type refusal struct {
	reason string
	// proven: the kernel refused this very Service. Otherwise it was among
	// others when time was up.
	proven bool
	// held is what the kernel has of the Service; nil for nothing.
	held *planned
}

// Bounds of how many runs of iptables-restore may be rejected in one pass while
// it is found out which Services are at fault. Meanwhile nothing else is
// written. What is left then counts as rejected and is tried again later.
const (
	maxRefusedRuns = 200
	// maxPartialRuns is that for a pass that writes changed Services alone.
	maxPartialRuns = 20
	// maxRetryRuns is that for Services of which it was proven before.
	maxRetryRuns = 10
)

// alone is the size of a Service that takes several calls, whatever one may carry.
const alone = math.MaxInt32

// isolation writes what is desired of Services one batch after the other. Where
// the kernel rejects it, those at fault are found, and the others are written.
type isolation struct {
	limit int // of runs that are rejected
	// perCall is how many lines one call of iptables-restore may carry, and size how
	// many a Service takes at most. A batch of several Services fits one call.
	perCall int
	size    func(dataplane.ServiceName) int
	// chains returns the chains that are desired of a Service.
	chains func(dataplane.ServiceName) []plannedChain
	// former are the Services that were rejected before.
	former map[dataplane.ServiceName]refusal
	// refused are those at fault, changed those that were written. It adds to both.
	refused map[dataplane.ServiceName]refusal
	changed map[dataplane.ServiceName]struct{}
	runs    int            // of iptables-restore that were rejected
	used    map[string]int // those for Services of one namespace alone
}

// writeFunc writes what is desired of some Services and returns the input that
// it gave to iptables-restore last.
type writeFunc func([]dataplane.ServiceName) (input string, err error)

// isolate writes what is desired of Services. Those of many rules and those that have been
// rejected before come last, so that others do not wait for them.
func (p *isolation) isolate(names []dataplane.ServiceName, write writeFunc) error {
	var fresh, large, unproven, proven []dataplane.ServiceName
	sizes := p.sizes(names)
	for _, n := range names {
		switch r, refused := p.former[n]; {
		case refused && r.proven:
			proven = append(proven, n)
		case refused:
			unproven = append(unproven, n)
		case sizes[n] > batchRules:
			large = append(large, n)
		default:
			fresh = append(fresh, n)
		}
	}
	for _, part := range [][]dataplane.ServiceName{fresh, unproven, large} {
		if err := p.isolateWithin(p.limit, part, sizes, write); err != nil {
			return err
		}
	}
	return p.isolateWithin(p.runs+maxRetryRuns, proven, sizes, write)
}

// sizes are those of Services. That of a single one decides nothing, and takes time.
func (p *isolation) sizes(names []dataplane.ServiceName) map[dataplane.ServiceName]int {
	out := make(map[dataplane.ServiceName]int, len(names))
	if len(names) > 1 {
		for _, n := range names {
			out[n] = p.size(n)
		}
	}
	return out
}

// isolateWithin isolates until limit runs have been rejected in this pass. Then
// each part that is left is tried once more, as a whole. Namespaces take turns, so that none
// uses up what others need.
func (p *isolation) isolateWithin(limit int, names []dataplane.ServiceName, sizes map[dataplane.ServiceName]int, write writeFunc) error {
	queue := serviceBatches(names, sizes, p.perCall)
	for len(queue) > 0 {
		i := p.next(queue)
		batch := queue[i]
		queue = slices.Delete(queue, i, i+1)
		input, err := write(batch)
		if err == nil {
			for _, name := range batch {
				p.changed[name] = struct{}{}
			}
			continue
		}
		if !isRefusal(err) {
			return err
		}
		p.runs++
		if len(batch) == 1 || p.runs >= limit {
			p.refuse(batch, refusal{reason: err.Error(), proven: len(batch) == 1})
			p.use(batch)
			continue
		}
		if border := namespaceBorder(batch); border > 0 {
			queue = append(queue, batch[:border], batch[border:])
			continue
		}
		p.use(batch)
		if suspects, rest := p.suspects(batch, input, err); len(suspects) > 0 && len(rest) > 0 {
			queue = append(queue, rest)
			single := min(len(suspects), limit-p.runs)
			for i := range single { // each by itself, which proves it or not
				queue = append(queue, suspects[i:i+1])
			}
			if single < len(suspects) {
				queue = append(queue, suspects[single:])
			}
			continue
		}
		// Both halves to the end: a part in which no Service is at fault is found
		// soon, wherever it is.
		half := len(batch) / 2
		queue = append(queue, batch[:half], batch[half:])
	}
	return nil
}

// next is the first of those batches whose namespace had the fewest runs rejected.
func (p *isolation) next(queue [][]dataplane.ServiceName) int {
	best := 0
	for i, batch := range queue {
		if p.used[batch[0].Namespace] < p.used[queue[best][0].Namespace] {
			best = i
		}
	}
	return best
}

// use counts a run that was rejected against the namespace of a batch.
func (p *isolation) use(batch []dataplane.ServiceName) {
	if p.used == nil {
		p.used = map[string]int{}
	}
	p.used[batch[0].Namespace]++
}

// namespaceBorder is where to part a sorted batch so that no namespace is on both sides, near
// its middle; 0: all are of one namespace.
func namespaceBorder(batch []dataplane.ServiceName) int {
	best, half := 0, len(batch)/2
	for i := 1; i < len(batch); i++ {
		if batch[i].Namespace != batch[i-1].Namespace && (best == 0 || i <= half) {
			best = i
		}
	}
	return best
}

// refuse notes Services as refused. What was proven before stays proven.
func (p *isolation) refuse(names []dataplane.ServiceName, r refusal) {
	for _, name := range names {
		delete(p.changed, name)
		if former, ok := p.former[name]; ok && former.proven && !r.proven {
			p.refused[name] = former
			continue
		}
		p.refused[name] = r
	}
}

// suspects parts a batch by the lines of input that iptables-restore names as
// at fault.
func (p *isolation) suspects(batch []dataplane.ServiceName, input string, err error) (suspects, rest []dataplane.ServiceName) {
	var e *toolError
	if !errors.As(err, &e) || len(e.faults) == 0 {
		return nil, batch
	}
	owners := map[string]dataplane.ServiceName{} // of chains
	for _, name := range batch {
		for _, c := range p.chains(name) {
			owners[c.name] = name
		}
	}
	lines := strings.Split(input, "\n")
	named := map[dataplane.ServiceName]struct{}{}
	for _, line := range e.faults {
		if line >= 1 && line <= len(lines) {
			if name, ok := lineOwner(lines[line-1], owners); ok {
				named[name] = struct{}{}
			}
		}
	}
	for _, name := range batch {
		if _, ok := named[name]; ok {
			suspects = append(suspects, name)
		} else {
			rest = append(rest, name)
		}
	}
	return suspects, rest
}

// lineOwner returns the Service that a line of input belongs to: by its chain,
// or by its comment in a shared chain.
func lineOwner(line string, owners map[string]dataplane.ServiceName) (dataplane.ServiceName, bool) {
	if chain, ok := strings.CutPrefix(line, ":"); ok {
		chain, _, _ = strings.Cut(chain, " ")
		name, ok := owners[chain]
		return name, ok
	}
	_, rest, _ := strings.Cut(line, " ") // -A, -I
	chain, spec, _ := strings.Cut(rest, " ")
	if name, ok := owners[chain]; ok {
		return name, true
	}
	return commentOwner(comment(spec))
}

// allRefused is an error where it is proven that the kernel takes no Service of
// several namespaces at all: then the fault is not in single Services. Within one
// namespace it may be in all of them.
func (p *fullPass) allRefused() error {
	n := len(p.ruleset.Services)
	if len(p.scope.refused) < n || !dataplane.SeveralNamespaces(maps.Keys(p.scope.refused)) {
		return nil
	}
	for _, r := range p.scope.refused {
		if !r.proven {
			return nil
		}
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(p.scope.refused)), dataplane.ServiceName.Compare)
	return fmt.Errorf("the kernel refuses the rules of all %d Services; of %s: %s",
		n, first, p.scope.refused[first].reason)
}

// resting are the Services that were refused before and are not tried this time,
// because nothing of them has changed and their time has not come.
func (d *Dataplane) resting(r *dataplane.Ruleset) map[dataplane.ServiceName]refusal {
	out := map[dataplane.ServiceName]refusal{}
	for name := range r.Rest {
		if why, refused := d.refused[name]; refused && r.Services[name] != nil {
			out[name] = why
		}
	}
	return out
}

// noteHeld notes what the kernel has of the Services that it refuses, so that each can
// be tried alone from now on: their rules, and the chains that these lead to.
func (p *fullPass) noteHeld(ctx context.Context) error {
	if len(p.scope.refused) == 0 {
		return nil
	}
	if p.faults.runs > 0 { // what was tried may have gone in in part
		if others, known := p.kernel.others(); known { // runs that are refused count as others'
			p.sound = &others
		}
		var err error
		if p.state, err = p.kernel.read(ctx); err != nil {
			return err
		}
	}
	rules := p.rulesOfRefused(p.state)
	for name, why := range p.scope.refused {
		why.held = &planned{chains: p.state.ledTo(rules[name]), dispatch: rules[name]}
		p.scope.refused[name] = why
	}
	return nil
}

// rulesOfRefused are the rules of refused Services in shared chains.
func (p *fullPass) rulesOfRefused(state *kernelState) map[dataplane.ServiceName][]dispatchRule {
	out := map[dataplane.ServiceName][]dispatchRule{}
	for _, c := range p.want.config.sharedChains() {
		have := state.chains[c.id]
		if !c.dispatch || have == nil {
			continue
		}
		for _, rule := range have.rules {
			name, owned := commentOwner(comment(rule.spec))
			if _, refused := p.scope.refused[name]; owned && refused {
				out[name] = append(out[name], dispatchRule{in: c.id, hash: rule.hash, spec: rule.spec})
			}
		}
	}
	return out
}
