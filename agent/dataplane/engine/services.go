package engine

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// retryPause is the minimum time between two full passes that changes of rejected Services of
// one namespace cause.
const retryPause = 10 * time.Second

// PreservedOf returns the Services that Ruleset.Preserve names and that are desired.
func PreservedOf(r *dataplane.Ruleset) map[dataplane.ServiceName]struct{} {
	preserved := maps.Clone(r.Preserve)
	maps.DeleteFunc(preserved, func(name dataplane.ServiceName, _ struct{}) bool { return r.Services[name] == nil })
	return preserved
}

// Unknown reports whether the actual state of a Service is unknown.
func (e *Engine[P]) Unknown(name dataplane.ServiceName) bool {
	_, preserved := e.Preserved[name]
	return preserved || e.Rejected[name].Unknown
}

// Resting returns the rejected Services that are not tried this time, because they have not
// changed and their retry is not due.
func (e *Engine[P]) Resting(r *dataplane.Ruleset) map[dataplane.ServiceName]Rejection[P] {
	out := map[dataplane.ServiceName]Rejection[P]{}
	for name := range r.Rest {
		if why, rejected := e.Rejected[name]; rejected && r.Services[name] != nil {
			out[name] = why
		}
	}
	return out
}

// Settled reports whether no rejected Service is to be tried again, and no part of one is left.
func (e *Engine[P]) Settled(r *dataplane.Ruleset) bool {
	return len(e.unfinished) == 0 && len(e.Resting(r)) == len(e.Rejected)
}

// toWrite returns the Services to write without a full pass, sorted. Done is false if there are
// more, whose actual state is unknown.
func (e *Engine[P]) toWrite(r *dataplane.Ruleset, all bool) (names []dataplane.ServiceName, done bool) {
	set := make(map[dataplane.ServiceName]struct{}, len(r.Dirty))
	maps.Copy(set, r.Dirty)
	retry := func(name dataplane.ServiceName) {
		if _, rests := r.Rest[name]; !rests {
			set[name] = struct{}{}
		}
	}
	for name := range e.Rejected {
		retry(name)
	}
	for name := range e.ops.Conflicts() {
		retry(name)
	}
	if all {
		for name := range r.Services {
			set[name] = struct{}{}
		}
	}
	done = true
	for name := range set {
		if !e.Unknown(name) {
			continue
		}
		delete(set, name)
		if all || !e.waits(r, name) {
			done = false
		}
	}
	return slices.SortedFunc(maps.Keys(set), dataplane.ServiceName.Compare), done
}

// waits reports whether a Service whose actual state is unknown stays rejected for now: a try
// takes a full pass, and one namespace must not cost all others one after the other. If it does
// not wait, its retry is used up.
func (e *Engine[P]) waits(r *dataplane.Ruleset, name dataplane.ServiceName) bool {
	_, preserved := e.Preserved[name]
	if preserved || r.Services[name] == nil {
		return false
	}
	now := e.clock.Now()
	maps.DeleteFunc(e.retried, func(_ string, at time.Time) bool { return now.Sub(at) >= retryPause })
	if _, recently := e.retried[name.Namespace]; recently {
		return true
	}
	e.retried[name.Namespace] = now
	return false
}

// parts returns the Services to write together: if there are large ones, first the changed ones
// that are not large, then all.
func (e *Engine[P]) parts(r *dataplane.Ruleset, names []dataplane.ServiceName) [][]dataplane.ServiceName {
	if r.Recheck || len(names) < 2 {
		return [][]dataplane.ServiceName{names}
	}
	large := false
	var small []dataplane.ServiceName
	for _, name := range names {
		switch _, dirty := r.Dirty[name]; {
		case !dirty:
		case e.ops.Large(name, r.Services[name]):
			large = true
		default:
			small = append(small, name)
		}
	}
	if !large || len(small) == 0 {
		return [][]dataplane.ServiceName{names}
	}
	return [][]dataplane.ServiceName{small, names}
}

// NoneTaken returns an error if the kernel provably rejects all n Services, and they are of
// several namespaces: then the fault is not in single Services. Within one namespace it may be
// in all of them.
func NoneTaken[P any](n int, rejected map[dataplane.ServiceName]Rejection[P]) error {
	if len(rejected) < n || !dataplane.SeveralNamespaces(maps.Keys(rejected)) {
		return nil
	}
	for _, r := range rejected {
		if !r.Proven {
			return nil
		}
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(rejected)), dataplane.ServiceName.Compare)
	return fmt.Errorf("the kernel rejects all %d Services, for example %s: %s", n, first, rejected[first].Reason)
}
