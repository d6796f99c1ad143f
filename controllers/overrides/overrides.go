package overrides

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/pacing"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
)

// overridesPerSecond is how many Services per second may change because of policies.
const overridesPerSecond = 50

// Overrides decides which overrides of its policies a Service has. The applied ones are in its
// rules, so a restart changes nothing: a Service retains them until the rate of changes permits another
// one, and while nodes reject another Service because of the same change.
type Overrides struct {
	client     client.Reader // reads come from the cache
	clock      clock.PassiveClock
	policies   snapshot[*PolicySet]
	rejections snapshot[map[types.NamespacedName]Rejection]
	throttle   *pacing.Throttle

	mu       sync.Mutex                      // guards everything below
	services map[types.NamespacedName]*Known // those asked about in this term
	retained sets.Set[types.NamespacedName]  // those that retain their overrides until something changes
}

// New returns Overrides that read from the cache.
func New(c client.Reader, clk clock.PassiveClock) *Overrides {
	return &Overrides{
		client: c, clock: clk, throttle: pacing.NewThrottle(overridesPerSecond),
		services: map[types.NamespacedName]*Known{}, retained: sets.Set[types.NamespacedName]{},
	}
}

// Shaping is what to render a Service with.
type Shaping struct {
	Shape render.Shape
	// Retained: the rules already have this shape. Otherwise Former is the shape that they have.
	Retained   bool
	Former     render.Shape
	Annotation string        // describes the overrides in the rules
	Again      time.Duration // when to decide again even if nothing changes; 0: never
	Unknown    bool          // a new Service must wait until its Namespace is known
}

// recheckInterval is how often the decision for a Service that retains its overrides is checked.
const recheckInterval = time.Minute

// Decision is the decision for a Service.
type Decision struct {
	Known   *Known // nil: its Namespace is not known yet
	Applied bool   // the Service has the overrides of its policies
	// grant is what it gets, unless they are applied. Nil: it retains its overrides, and Why gives the
	// reason.
	grant  *v1alpha1.OverridesGrant
	Why    string
	atOnce bool // it has no overrides to retain
}

// Shape decides what to render a Service with. Stored are its rules, nil for none.
func (o *Overrides) Shape(ctx context.Context, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (Shaping, error) {
	set, err := o.CurrentPolicies(ctx)
	if err != nil {
		return Shaping{}, err
	}
	key := client.ObjectKeyFromObject(svc)
	if len(set.Generations) == 0 && (stored == nil || len(stored.Spec.Policies) == 0 && stored.Annotations[v1alpha1.AnnotationOverrides] == "") {
		o.settled(key, false) // no policy ever touched it
		return Shaping{Retained: true}, nil
	}
	decision, err := o.Decide(ctx, set, svc, stored)
	switch {
	case err != nil:
		return Shaping{}, err
	case decision.Known == nil && stored == nil:
		return Shaping{Unknown: true, Again: retry.Soon}, nil
	case decision.Applied:
		o.settled(key, false)
		return retain(decision.Known, stored, 0), nil
	case decision.grant == nil:
		o.settled(key, true)
		return retain(decision.Known, stored, recheckInterval), nil // the end of a halt meanwhile triggers nothing
	}
	o.mu.Lock()
	o.retained.Delete(key)
	o.mu.Unlock()
	if !decision.atOnce {
		if wait := o.throttle.Wait(key, o.clock.Now()); wait > 0 {
			return retain(decision.Known, stored, wait), nil
		}
	}
	out := Shaping{Shape: render.Shape{Overrides: &decision.grant.Overrides, Policies: decision.Known.Desired.Policies}}
	if len(decision.grant.Owners)+len(decision.grant.By) > 0 {
		out.Annotation, err = encoded(decision.grant)
	}
	if stored != nil {
		out.Former = retain(decision.Known, stored, 0).Shape
	}
	return out, err
}

// PoliciesChanged notes a change of the policies.
func (o *Overrides) PoliciesChanged() { o.policies.changes.Add(1) }

// RejectionsChanged notes a change of the Services that nodes reject.
func (o *Overrides) RejectionsChanged() { o.rejections.changes.Add(1) }

// RejectionChanges counts the calls of RejectionsChanged.
func (o *Overrides) RejectionChanges() int64 { return o.rejections.changes.Load() }

// Decide decides for a Service. If no policy ever touched it, Shape needs no decision.
func (o *Overrides) Decide(ctx context.Context, set *PolicySet, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (Decision, error) {
	known, err := o.know(ctx, set, svc, stored)
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
			out.grant.By = nil // a new Service: if nodes reject it, that halts no change
		}
		return out, nil
	}
	if known.granted && slices.Equal(known.Desired.Policies, stored.Spec.Policies) {
		out.Applied = true
		return out, nil
	}
	if invalid := set.retaining(known, stored.Spec.Policies); invalid != "" {
		out.Why = "policy " + invalid + " is not valid"
		return out, nil
	}
	rejected, err := o.Rejected(ctx)
	if err != nil {
		return Decision{}, err
	}
	for _, cause := range change.Causes() {
		if halt := o.haltOf(ctx, rejected, cause); halt.Applies(svc.Namespace) {
			out.Why = WhyRetained(cause.Name, halt)
			return out, nil
		}
	}
	_, change.Rejected = rejected[client.ObjectKeyFromObject(svc)]
	grant := change.Grant()
	if limit := render.LimitExceededWith(svc, &grant.Overrides); limit != "" { // its own changes must still reach the nodes
		out.Why = "with the new overrides, the Service would have too many " + limit
		return out, nil
	}
	out.grant = grant
	return out, nil
}

// WhyRetained returns the reason why Services retain their overrides when the change of a policy has halted.
func WhyRetained(policy string, halt policies.Halt) string {
	if halt.All {
		return "the change of policy " + policy + " has halted"
	}
	return fmt.Sprintf("the change of policy %s waits in namespace %s", policy, text.First(halt.Namespaces, func(s string) string { return s }))
}

// retaining names an invalid policy because of which a Service retains its overrides; empty for none.
func (s *PolicySet) retaining(known *Known, shaped []string) string {
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

// retain returns the overrides that a Service has, and when to decide again.
func retain(known *Known, stored *v1alpha1.ServiceProxyRules, again time.Duration) Shaping {
	text := stored.Annotations[v1alpha1.AnnotationOverrides]
	var grant *v1alpha1.OverridesGrant
	if known != nil && known.text == text {
		grant = known.grant
	} else {
		grant = policies.ReadOverrides(text)
	}
	out := Shaping{Annotation: text, Retained: true, Shape: render.Shape{Policies: stored.Spec.Policies}, Again: again}
	if grant != nil {
		out.Shape.Overrides = &grant.Overrides
	}
	return out
}

// settled notes that a Service has the overrides of its policies, or retains its own until something
// changes.
func (o *Overrides) settled(key types.NamespacedName, retains bool) {
	o.throttle.Done(key)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.retained.Delete(key); retains {
		o.retained.Insert(key)
	}
}

// Forget drops a Service that is gone or no longer eligible.
func (o *Overrides) Forget(key types.NamespacedName) {
	o.settled(key, false)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.services, key)
}

// NewTerm forgets all Services: those that still exist will be reconciled again.
func (o *Overrides) NewTerm() {
	o.throttle.NewTerm()
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.services)
	clear(o.retained)
}

// Retaining returns the Services that retain their overrides until something changes.
func (o *Overrides) Retaining() []types.NamespacedName {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.retained.UnsortedList()
}
