package iptables

import (
	"errors"
	"fmt"
	"maps"
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
}

// Bounds of how many runs of iptables-restore may be refused in one pass while
// it is found out which Services are at fault. Meanwhile nothing else is
// written. What is left then counts as refused and is tried in the next pass.
const (
	maxRefusedRuns = 200
	// maxRetryRuns is that for Services of which it was proven before.
	maxRetryRuns = 10
)

// writeFunc writes what is wanted of some Services and returns the input that
// it gave to iptables-restore.
type writeFunc func([]dataplane.ServiceName) (input string, err error)

// isolate writes what is wanted of Services. Where the kernel refuses it, those
// at fault are found and noted as refused, and the others are written. Services
// that have been refused before come last, so that others do not wait for them.
func (p *fullPass) isolate(names []dataplane.ServiceName, write writeFunc) error {
	var fresh, unproven, proven []dataplane.ServiceName
	for _, n := range names {
		switch r, refused := p.Dataplane.refused[n]; {
		case !refused:
			fresh = append(fresh, n)
		case r.proven:
			proven = append(proven, n)
		default:
			unproven = append(unproven, n)
		}
	}
	if err := p.isolateWithin(maxRefusedRuns, slices.Concat(fresh, unproven), write); err != nil {
		return err
	}
	return p.isolateWithin(p.runs+maxRetryRuns, proven, write)
}

// isolateWithin isolates until limit runs have been refused in this pass. Then
// each part that is left is tried once more, as a whole.
func (p *fullPass) isolateWithin(limit int, names []dataplane.ServiceName, write writeFunc) error {
	size := func(n dataplane.ServiceName) int { return ruleEstimate(p.ruleset.Services[n]) }
	queue := serviceBatches(names, size, perCall(p.kernel, batchRules))
	for len(queue) > 0 {
		batch := queue[0]
		queue = queue[1:]
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
			continue
		}
		if suspects, rest := p.suspects(batch, input, err); len(suspects) > 0 && len(rest) > 0 {
			queue = append(queue, rest)
			for i := range suspects { // each by itself, which proves it or not
				queue = append(queue, suspects[i:i+1])
			}
			continue
		}
		// Both halves to the end: a part in which nobody is at fault is found
		// soon, wherever it is.
		half := len(batch) / 2
		queue = append(queue, batch[:half], batch[half:])
	}
	return nil
}

// refuse notes Services as refused. What was proven before stays proven.
func (p *fullPass) refuse(names []dataplane.ServiceName, r refusal) {
	for _, name := range names {
		delete(p.changed, name)
		if former, ok := p.Dataplane.refused[name]; ok && former.proven && !r.proven {
			p.scope.refused[name] = former
			continue
		}
		p.scope.refused[name] = r
	}
}

// suspects parts a batch by the lines of input that iptables-restore names as
// at fault.
func (p *fullPass) suspects(batch []dataplane.ServiceName, input string, err error) (suspects, rest []dataplane.ServiceName) {
	var e *toolError
	if !errors.As(err, &e) || len(e.faults) == 0 {
		return nil, batch
	}
	owners := map[string]dataplane.ServiceName{} // of chains
	for _, name := range batch {
		for _, c := range p.want.services[name].chains {
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

// allRefused is an error where it is proven that the kernel takes no Service at
// all: then the fault is not in single Services.
func (p *fullPass) allRefused() error {
	n := len(p.ruleset.Services)
	if n < 2 || len(p.scope.refused) < n {
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
