package engine

import (
	"context"
	"errors"
	"iter"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ErrFull is wrapped by errors after which only a full pass can tell what the kernel has.
var ErrFull = errors.New("the kernel may not have what was written")

// Effect is what changed facts of the node mean for an Apply.
type Effect int

// Effects of changed facts.
const (
	// NoEffect: rules of Services do not depend on what has changed.
	NoEffect Effect = iota
	// AllServices have to be planned anew.
	AllServices
	// TakesFull: it takes a full pass.
	TakesFull
)

// Operations are what a data plane does for an Engine.
type Operations interface {
	// Open makes the kernel available. It costs next to nothing where it is.
	Open(ctx context.Context) error
	// Known reports whether it is known what the kernel has.
	Known() bool
	// Recheck takes up facts of the node that may have changed.
	Recheck(ctx context.Context, r *dataplane.Ruleset) (Effect, error)
	// Change writes some Services, sorted, alone, and returns how many have changed. All: those
	// are all Services, because of changed facts. Where that takes a full pass, the error wraps
	// ErrFull.
	Change(ctx context.Context, r *dataplane.Ruleset, names []dataplane.ServiceName, all bool) (changed int, err error)
	// Full reads the kernel, compares everything and writes the difference. Asked is false where
	// changes by another program may be why it is needed. It sets Engine.Rejected and Kept.
	Full(ctx context.Context, r *dataplane.Ruleset, asked bool) (FullPass, error)
	// Large reports whether Services that are not large should not wait for this one. A nil
	// Service has ended.
	Large(name dataplane.ServiceName, svc *dataplane.Service) bool
	// Conflicts yields the Services that do not have all that they ask for, because it is
	// another's.
	Conflicts() iter.Seq2[dataplane.ServiceName, Conflict]
	// Report adds to the result of an Apply what only the data plane knows.
	Report(r *dataplane.Ruleset, result *dataplane.Result)
}

// FullPass is what a full pass did.
type FullPass struct {
	// Changed is the number of Services that were written.
	Changed int
	// Repaired is what another program had changed, as far as it is known.
	Repaired dataplane.Difference
}

// Conflict is why a Service does not have all that it asks for.
type Conflict struct {
	Reason string
	// Served is the Service as it is served all the same.
	Served *dataplane.Service
}

// Rejection is why the kernel does not have what is desired of a Service. P is the plan of a
// Service.
type Rejection[P any] struct {
	Reason string
	// Proven: the kernel rejected this very Service. Otherwise it was among
	// others when time was up.
	Proven bool
	// Held is what the kernel has of the Service; nil for nothing. Unknown: that is not known.
	Held    *P
	Unknown bool
}

// Engine applies Rulesets by the operations of a data plane. Its methods are not called
// concurrently, but for Begun.
type Engine[P any] struct {
	// Rejected are the Services that the kernel rejects.
	Rejected map[dataplane.ServiceName]Rejection[P]
	// Kept are the Services of which the kernel may have something newer than what was planned;
	// see Ruleset.Keep.
	Kept map[dataplane.ServiceName]struct{}

	ops   Operations
	clock clock.PassiveClock
	// retried is when a rejected Service of a namespace last had a full pass made.
	retried map[string]time.Time
	begun   chan struct{}
}

// New makes an Engine.
func New[P any](ops Operations, c clock.PassiveClock) *Engine[P] {
	return &Engine[P]{
		Rejected: map[dataplane.ServiceName]Rejection[P]{}, ops: ops, clock: c,
		retried: map[string]time.Time{}, begun: make(chan struct{}),
	}
}

// Begun is closed once the kernel is known for the first time.
func (e *Engine[P]) Begun() <-chan struct{} { return e.begun }

// Begin notes that the kernel is known.
func (e *Engine[P]) Begin() {
	select {
	case <-e.begun:
	default:
		close(e.begun)
	}
}

// Apply writes the changed Services alone where it is known what the kernel has, or else reads
// and compares all of it.
func (e *Engine[P]) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	if err := e.ops.Open(ctx); err != nil {
		return dataplane.Result{}, err
	}
	changed, done, asked := 0, false, r.Full || !e.ops.Known()
	if !asked {
		effect := NoEffect
		var err error
		if r.Recheck {
			if effect, err = e.ops.Recheck(ctx, r); err != nil {
				return dataplane.Result{}, err
			}
		}
		if asked = effect == TakesFull; !asked {
			changed, done, err = e.Change(ctx, r, effect == AllServices)
			if err != nil && !errors.Is(err, ErrFull) {
				return dataplane.Result{}, err
			}
			done = done && err == nil
		}
	}
	if done {
		return e.result(r, v1alpha1.SyncPartial, changed), nil
	}
	pass, err := e.ops.Full(ctx, r, asked)
	if err != nil {
		return dataplane.Result{}, err
	}
	result := e.result(r, v1alpha1.SyncFull, changed+pass.Changed)
	result.Repaired = pass.Repaired
	return result, nil
}

// Change writes the Services that have changed, and then those that were rejected and are not to
// rest. Done is false if a full pass has to look after some of it.
func (e *Engine[P]) Change(ctx context.Context, r *dataplane.Ruleset, all bool) (changed int, done bool, err error) {
	names, done := e.toWrite(r, all)
	if len(names) == 0 && !all {
		return 0, done, nil
	}
	for _, part := range e.parts(r, names) {
		n, err := e.ops.Change(ctx, r, part, all)
		changed += n
		if err != nil {
			return changed, false, err
		}
	}
	return changed, done, nil
}

func (e *Engine[P]) result(r *dataplane.Ruleset, kind v1alpha1.SyncKind, changed int) dataplane.Result {
	result := dataplane.Result{
		Kind: kind, ServicesChanged: changed, Rejected: map[dataplane.ServiceName]string{},
		Reduced: map[dataplane.ServiceName]*dataplane.Service{}, Suspected: map[dataplane.ServiceName]struct{}{},
	}
	for name, c := range e.ops.Conflicts() {
		result.Rejected[name], result.Reduced[name] = c.Reason, c.Served
	}
	for name, why := range e.Rejected {
		result.Rejected[name] = why.Reason
		delete(result.Reduced, name)
		if !why.Proven {
			result.Suspected[name] = struct{}{}
		}
	}
	e.ops.Report(r, &result)
	result.Warnings = result.Warnings[:min(len(result.Warnings), dataplane.MaxExamples)]
	result.Notes = result.Notes[:min(len(result.Notes), dataplane.MaxExamples)]
	return result
}
