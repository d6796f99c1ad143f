package overrides

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/pacing"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
	"github.com/nodeproxy-io/nodeproxy/controllers/text"
)

// overridesPerSecond is how many Services per second may change because of policies.
const overridesPerSecond = 50

// Overrides decides which overrides of its policies a Service has. The applied ones are in its
// rules, so a restart changes nothing: a Service keeps them until its turn, and while nodes reject
// what the same change made of another Service.
type Overrides struct {
	client     client.Reader // reads come from the cache
	clock      clock.PassiveClock
	policies   *allPolicies
	rejections snapshot[map[types.NamespacedName]Rejection]
	turns      *pacing.Turns

	mu   sync.Mutex
	kept map[types.NamespacedName]bool // that keep their overrides, not only until their turn; guarded by mu
}

// New returns Overrides that read from the cache.
func New(c client.Reader, clk clock.PassiveClock) *Overrides {
	return &Overrides{
		client: c, clock: clk, policies: newPolicies(c),
		turns: pacing.NewTurns(overridesPerSecond), kept: map[types.NamespacedName]bool{},
	}
}

// Shaping is what to render a Service with.
type Shaping struct {
	Shape render.Shape
	// Kept: the rules already have this shape. Otherwise former is the shape that they have.
	Kept   bool
	Former render.Shape
	// Annotation describes the overrides in the rules. Empty: none.
	Annotation string
	// Again is when to decide again even if nothing changes; 0: never.
	Again time.Duration
	// Unknown: a new Service must wait until its Namespace is known.
	Unknown bool
}

// recheckInterval is how often the decision for a Service that keeps its overrides is checked.
const recheckInterval = time.Minute

// Decision is the decision for a Service.
type Decision struct {
	Known *Known // nil: nothing is known of its Namespace
	// Applied: the Service has the overrides of its policies.
	Applied bool
	// grant is what it is to get, if it has not. Nil: it keeps its overrides, and Why gives the
	// reason.
	grant *v1alpha1.OverridesGrant
	Why   string
	// atOnce: it has no overrides that it could keep.
	atOnce bool
}

// untouched reports whether there is no policy, and these rules have never had one.
func untouched(set *PolicySet, stored *v1alpha1.ServiceProxyRules) bool {
	return len(set.Generations) == 0 &&
		(stored == nil || len(stored.Spec.Policies) == 0 && stored.Annotations[v1alpha1.AnnotationOverrides] == "")
}

// Shape decides what to render a Service with. Stored are its rules, nil for none.
func (o *Overrides) Shape(ctx context.Context, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (Shaping, error) {
	set, err := o.policies.current(ctx)
	if err != nil {
		return Shaping{}, err
	}
	key := client.ObjectKeyFromObject(svc)
	if untouched(set, stored) {
		o.settled(key)
		return Shaping{Kept: true}, nil
	}
	decision, err := o.Decide(ctx, set, svc, stored)
	switch {
	case err != nil:
		return Shaping{}, err
	case decision.Known == nil && stored == nil:
		return Shaping{Unknown: true, Again: retry.Soon}, nil
	case decision.Applied:
		o.settled(key)
		return keep(decision.Known, stored), nil
	case decision.grant == nil:
		o.keeps(key)
		out := keep(decision.Known, stored)
		out.Again = recheckInterval // the end of a halt meanwhile triggers nothing
		return out, nil
	}
	if wait := o.turn(key, decision.atOnce); wait > 0 {
		out := keep(decision.Known, stored)
		out.Again = wait
		return out, nil
	}
	out, err := give(decision)
	if stored != nil {
		out.Former = keep(decision.Known, stored).Shape
	}
	return out, err
}

// PoliciesChanged notes a change of the policies.
func (o *Overrides) PoliciesChanged() { o.policies.set.changed() }

// RejectionsChanged notes a change of the Services that nodes reject.
func (o *Overrides) RejectionsChanged() { o.rejections.changed() }

// RejectionChanges counts the calls of RejectionsChanged.
func (o *Overrides) RejectionChanges() int64 { return o.rejections.changes.Load() }

// CurrentPolicies returns the current policies.
func (o *Overrides) CurrentPolicies(ctx context.Context) (*PolicySet, error) {
	return o.policies.current(ctx)
}

// turn returns how long a Service must wait for its turn.
func (o *Overrides) turn(key types.NamespacedName, atOnce bool) time.Duration {
	o.mu.Lock()
	delete(o.kept, key)
	o.mu.Unlock()
	if atOnce {
		return 0
	}
	return o.turns.Wait(key, o.clock.Now())
}

// Decide decides for a Service, unless no policy ever touched it.
func (o *Overrides) Decide(ctx context.Context, set *PolicySet, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (Decision, error) {
	known, err := o.policies.of(ctx, set, svc, stored)
	if err != nil {
		return Decision{}, err
	}
	if known == nil {
		return Decision{Why: "its Namespace is not known yet"}, nil
	}
	out := Decision{Known: known}
	change := &policies.ServiceChange{Before: known.grant, Desired: known.Desired, Generations: set.Generations}
	if stored == nil || known.grant == nil || known.text == "" && len(stored.Spec.Policies) > 0 {
		change.Before = &v1alpha1.OverridesGrant{}
		out.grant, out.atOnce = change.Grant(), true
		if stored == nil {
			out.grant.By = nil // nothing has changed: if nodes reject it, that halts no change
		}
		return out, nil
	}
	if known.granted && slices.Equal(known.Desired.Policies, stored.Spec.Policies) {
		out.Applied = true
		return out, nil
	}
	if invalid := set.keeping(known, stored.Spec.Policies); invalid != "" {
		out.Why = "policy " + invalid + " is not valid"
		return out, nil
	}
	rejected, err := o.Rejected(ctx)
	if err != nil {
		return Decision{}, err
	}
	for _, cause := range change.Causes() {
		if halt := o.haltOf(ctx, rejected, cause); halt.Applies(svc.Namespace) {
			out.Why = WhyKept(cause.Name, halt)
			return out, nil
		}
	}
	_, change.Rejected = rejected[client.ObjectKeyFromObject(svc)]
	out.grant = change.Grant()
	return out, nil
}

// WhyKept says why Services keep their overrides when the change of a policy has halted.
func WhyKept(policy string, halt policies.Halt) string {
	if halt.All {
		return "the change of policy " + policy + " has halted"
	}
	return fmt.Sprintf("the change of policy %s waits in namespace %s", policy, text.First(halt.Namespaces, func(s string) string { return s }))
}

// keeping names an invalid policy because of which a Service keeps its overrides; empty for none.
func (s *PolicySet) keeping(known *Known, shaped []string) string {
	if len(known.Invalid) > 0 {
		return known.Invalid[0]
	}
	for i := range s.Invalid {
		if name := s.Invalid[i].Name; slices.Contains(shaped, name) {
			return name
		}
	}
	return ""
}

// keep returns the overrides that a Service has.
func keep(known *Known, stored *v1alpha1.ServiceProxyRules) Shaping {
	text := stored.Annotations[v1alpha1.AnnotationOverrides]
	grant := policies.ReadOverrides
	if known != nil && known.text == text {
		grant = func(string) *v1alpha1.OverridesGrant { return known.grant }
	}
	out := Shaping{Annotation: text, Kept: true, Shape: render.Shape{Policies: stored.Spec.Policies}}
	if g := grant(text); g != nil {
		out.Shape.Overrides = &g.Overrides
	}
	return out
}

// give returns the overrides that a Service is to get.
func give(decision Decision) (Shaping, error) {
	out := Shaping{Shape: render.Shape{Overrides: &decision.grant.Overrides, Policies: decision.Known.Desired.Policies}}
	if len(decision.grant.Owners)+len(decision.grant.By) == 0 {
		return out, nil
	}
	var err error
	out.Annotation, err = encoded(decision.grant)
	return out, err
}

// keeps notes that a Service keeps its overrides until something changes.
func (o *Overrides) keeps(key types.NamespacedName) {
	o.turns.Done(key)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept[key] = true
}

// settled notes that a Service has the overrides of its policies.
func (o *Overrides) settled(key types.NamespacedName) {
	o.turns.Done(key)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.kept, key)
}

// Forget drops a Service that is gone or no longer eligible.
func (o *Overrides) Forget(key types.NamespacedName) {
	o.settled(key)
	o.policies.forget(key)
}

// NewTerm forgets all Services: those that still exist will be reconciled again.
func (o *Overrides) NewTerm() {
	o.turns.NewTerm()
	o.policies.newTerm()
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.kept)
}

// Keeping returns the Services that keep their overrides until something changes.
func (o *Overrides) Keeping() []types.NamespacedName {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]types.NamespacedName, 0, len(o.kept))
	for key := range o.kept {
		out = append(out, key)
	}
	return out
}
