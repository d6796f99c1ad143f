package engine

import (
	"context"
	"errors"
	"iter"
	"maps"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ErrFull is wrapped by errors that require a full pass, because the actual state is unknown.
var ErrFull = errors.New("the kernel may not have what was written")

// Effect is the effect of changed facts of the node on an Apply.
type Effect int

// Effects of changed facts.
const (
	// NoEffect: rules of Services do not depend on what has changed.
	NoEffect Effect = iota
	// AllServices must be planned again.
	AllServices
	// TakesFull: a full pass is needed.
	TakesFull
)

// Operations are the operations of a data plane that an Engine needs.
type Operations interface {
	// Open makes the kernel available. It costs next to nothing if it already is.
	Open(ctx context.Context) error
	// Known reports whether the actual state is known.
	Known() bool
	// Recheck reads facts of the node that may have changed.
	Recheck(ctx context.Context, r *dataplane.Ruleset) (Effect, error)
	// Change writes only some Services, which are sorted, and returns how many have changed.
	// All: these are all Services, because of changed facts. If that takes a full pass, the
	// error wraps ErrFull.
	Change(ctx context.Context, r *dataplane.Ruleset, names []dataplane.ServiceName, all bool) (changed int, err error)
	// Full reads the kernel, compares everything and writes the difference. Asked is false if
	// changes by another program may be the reason. It sets Engine.Rejected and Preserved.
	Full(ctx context.Context, r *dataplane.Ruleset, asked bool) (FullPass, error)
	// Large reports whether smaller Services should not wait for this one. A nil Service has
	// ended.
	Large(name dataplane.ServiceName, svc *dataplane.Service) bool
	// Conflicts yields the Services that do not have everything that they ask for, because
	// another Service or program has it.
	Conflicts() iter.Seq2[dataplane.ServiceName, Conflict]
	// Report completes the result of an Apply.
	Report(r *dataplane.Ruleset, result *dataplane.Result)
}

// FullPass is the result of a full pass.
type FullPass struct {
	// Changed is the number of Services that were written.
	Changed int
	// Repaired is what another program had changed, as far as known.
	Repaired dataplane.Difference
}

// Conflict is why a Service does not have everything that it asks for.
type Conflict struct {
	Reason string
	// Served is the Service as it is served nevertheless.
	Served *dataplane.Service
}

// Rejection is why the kernel does not have the desired state of a Service. P is the plan of a
// Service.
type Rejection[P any] struct {
	Reason string
	// Proven: the kernel rejected this Service alone. Otherwise it was among others when time
	// was up.
	Proven bool
	// Actual is the actual state of the Service; nil: the kernel has nothing. Unknown: it is
	// unknown.
	Actual  *P
	Unknown bool
}

// Engine applies Rulesets by the operations of a data plane. Its methods are not called
// concurrently, except Begun.
type Engine[P any] struct {
	// Rejected are the Services that the kernel rejects.
	Rejected map[dataplane.ServiceName]Rejection[P]
	// Preserved are the Services whose actual state may be newer than the plan; see Ruleset.Preserve.
	Preserved map[dataplane.ServiceName]struct{}
	// Repair, if not nil, writes what the last Verify has found, without reading anything else; enough is
	// false if that takes a full pass.
	Repair func(ctx context.Context, r *dataplane.Ruleset) (pass FullPass, enough bool)

	// unfinished are the Services of which a part is left; see Leave. Left: by the running Change.
	unfinished map[dataplane.ServiceName]struct{}
	left       bool

	ops   Operations
	clock clock.PassiveClock
	// retried is when a rejected Service of a namespace last caused a full pass.
	retried map[string]time.Time
	// begin closes begun.
	begin func()
	begun chan struct{}
}

// New returns an Engine.
func New[P any](ops Operations, c clock.PassiveClock) *Engine[P] {
	begun := make(chan struct{})
	return &Engine[P]{
		Rejected: map[dataplane.ServiceName]Rejection[P]{}, ops: ops, clock: c,
		unfinished: map[dataplane.ServiceName]struct{}{}, retried: map[string]time.Time{},
		begun: begun, begin: sync.OnceFunc(func() { close(begun) }),
	}
}

// Begun is closed once the actual state is known for the first time.
func (e *Engine[P]) Begun() <-chan struct{} { return e.begun }

// Begin notes that the actual state is known.
func (e *Engine[P]) Begin() { e.begin() }

// Apply writes only the changed Services if the actual state is known, or else reads and
// compares everything.
func (e *Engine[P]) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	if err := e.ops.Open(ctx); err != nil {
		return dataplane.Result{}, err
	}
	changed, done, asked := 0, false, r.Full || !e.ops.Known()
	var repaired dataplane.Difference
	if r.Repair && e.Repair != nil && e.ops.Known() {
		pass, enough := e.Repair(ctx, r)
		asked, changed, repaired = !enough, pass.Changed, pass.Repaired
	}
	if !asked {
		effect := NoEffect
		var err error
		if r.Recheck {
			if effect, err = e.ops.Recheck(ctx, r); err != nil {
				return dataplane.Result{}, err
			}
		}
		if asked = effect == TakesFull; !asked {
			var n int
			n, done, err = e.Change(ctx, r, effect == AllServices)
			if err != nil && !errors.Is(err, ErrFull) {
				return dataplane.Result{}, err
			}
			changed, done = changed+n, done && err == nil
		}
	}
	if done {
		result := e.result(r, v1alpha1.SyncPartial, changed)
		result.Repaired = repaired
		return result, nil
	}
	pass, err := e.ops.Full(ctx, r, asked)
	if err != nil {
		return dataplane.Result{}, err
	}
	clear(e.unfinished)
	result := e.result(r, v1alpha1.SyncFull, changed+pass.Changed)
	if result.Repaired = pass.Repaired; repaired.Count > 0 {
		result.Repaired = repaired
	}
	return result, nil
}

// Leave notes that a Change has left Services, or a part of them, for a later Apply, because
// Ruleset.Pause has asked for that: those of names that it has neither changed nor found rejected.
func (e *Engine[P]) Leave(names []dataplane.ServiceName, changed map[dataplane.ServiceName]struct{}, rejected map[dataplane.ServiceName]Rejection[P]) {
	e.left = true
	for _, name := range names {
		_, done := changed[name]
		if _, tried := rejected[name]; !done && !tried {
			e.unfinished[name] = struct{}{}
		}
	}
}

// Change writes the Services that have changed and the rejected ones that are due again. Done is
// false if some of them need a full pass.
func (e *Engine[P]) Change(ctx context.Context, r *dataplane.Ruleset, all bool) (changed int, done bool, err error) {
	names, done := e.toWrite(r, all)
	if len(names) == 0 && !all {
		return 0, done, nil
	}
	e.left = false
	for _, part := range e.parts(r, names) {
		if e.left {
			e.Leave(part, nil, nil)
			continue
		}
		for _, name := range part {
			delete(e.unfinished, name)
		}
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
		Unfinished: maps.Clone(e.unfinished),
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
