package controllers

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
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// overridesPerSecond is how many Services may change in a second because policies do.
const overridesPerSecond = 50

// overrides decides what of its policies a Service has. What it has is in its rules, so
// that a restart changes nothing: it keeps that until its turn has come, and as long as
// nodes refuse what the same change has made of another one.
type overrides struct {
	client   client.Reader // reads come from the cache
	clock    clock.PassiveClock
	policies *servicePolicies
	refusals *refusals
	pace     *pace

	mu   sync.Mutex
	kept map[types.NamespacedName]bool // that keep what they have, but not for their turn; guarded by mu
}

func newOverrides(c client.Reader, clk clock.PassiveClock) *overrides {
	p := newServicePolicies(c)
	return &overrides{
		client: c, clock: clk, policies: p, refusals: newRefusals(c),
		pace: newPace(overridesPerSecond), kept: map[types.NamespacedName]bool{},
	}
}

// shaping is what to render a Service with.
type shaping struct {
	shape render.Shape
	// kept: it has that already. Otherwise former is what it has.
	kept   bool
	former render.Shape
	// annotation says of the rules what they have. Empty: nothing.
	annotation string
	// again is when to look again though nothing has changed; 0: never.
	again time.Duration
	// unknown: a new Service must wait until its Namespace is known.
	unknown bool
}

// lookAgain is after how long a Service that keeps what it has is looked at again, though
// nothing has happened.
const lookAgain = time.Minute

// outlook is what is to become of a Service.
type outlook struct {
	known *knownOverride // nil: nothing is known of its Namespace
	// inForce: it has what its policies make of it.
	inForce bool
	// grant is what it is to have, where it has not. Nil: it keeps what it has, and why
	// tells for which reason.
	grant *v1alpha1.OverridesGrant
	why   string
	// atOnce: it has nothing that could be kept.
	atOnce bool
}

// untouched reports whether there is no policy, and never was one for these rules.
func untouched(set *servicePolicySet, stored *v1alpha1.ServiceProxyRules) bool {
	return len(set.generations) == 0 &&
		(stored == nil || len(stored.Spec.Policies) == 0 && stored.Annotations[v1alpha1.AnnotationOverrides] == "")
}

// shape decides what to render a Service with. Stored are its rules, nil for none.
func (o *overrides) shape(ctx context.Context, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (shaping, error) {
	set, err := o.policies.current(ctx)
	if err != nil {
		return shaping{}, err
	}
	key := client.ObjectKeyFromObject(svc)
	if untouched(set, stored) {
		o.settled(key)
		return shaping{kept: true}, nil
	}
	look, err := o.look(ctx, set, svc, stored)
	switch {
	case err != nil:
		return shaping{}, err
	case look.known == nil && stored == nil:
		return shaping{unknown: true, again: retrySoon}, nil
	case look.inForce:
		o.settled(key)
		return keep(look.known, stored), nil
	case look.grant == nil:
		o.keeps(key)
		out := keep(look.known, stored)
		out.again = lookAgain // a stop that has ended meanwhile wakes nobody
		return out, nil
	}
	if wait := o.turn(key, look.atOnce); wait > 0 {
		out := keep(look.known, stored)
		out.again = wait
		return out, nil
	}
	out, err := give(look)
	if stored != nil {
		out.former = keep(look.known, stored).shape
	}
	return out, err
}

// policiesChanged notes that there are other policies than before.
func (o *overrides) policiesChanged() { o.policies.changed() }

// rejectionsChanged notes that nodes reject other Services than before.
func (o *overrides) rejectionsChanged() { o.refusals.changed() }

// rejectionChanges counts the calls of rejectionsChanged.
func (o *overrides) rejectionChanges() int64 { return o.refusals.changes.Load() }

// currentPolicies returns the policies as they are now.
func (o *overrides) currentPolicies(ctx context.Context) (*servicePolicySet, error) {
	return o.policies.current(ctx)
}

// rejected returns the Services that nodes reject now.
func (o *overrides) rejected(ctx context.Context) (map[types.NamespacedName]refusedBy, error) {
	return o.refusals.current(ctx)
}

// turn returns how long a Service must wait for its turn.
func (o *overrides) turn(key types.NamespacedName, atOnce bool) time.Duration {
	o.mu.Lock()
	delete(o.kept, key)
	o.mu.Unlock()
	if atOnce {
		return 0
	}
	return o.pace.wait(key, o.clock.Now())
}

// look tells what is to become of a Service, unless nothing ever touched it.
func (o *overrides) look(ctx context.Context, set *servicePolicySet, svc *corev1.Service, stored *v1alpha1.ServiceProxyRules) (outlook, error) {
	known, err := o.policies.of(ctx, set, svc, stored)
	if err != nil {
		return outlook{}, err
	}
	if known == nil {
		return outlook{why: "its Namespace is not known yet"}, nil
	}
	out := outlook{known: known}
	change := &policies.ServiceChange{Before: known.grant, Wanted: known.wanted, Generations: set.generations}
	if stored == nil || known.grant == nil || known.text == "" && len(stored.Spec.Policies) > 0 {
		change.Before = &v1alpha1.OverridesGrant{}
		out.grant, out.atOnce = change.Grant(), true
		if stored == nil {
			out.grant.By = nil // nothing has changed, so that it stops no change if nodes refuse it
		}
		return out, nil
	}
	if known.granted && slices.Equal(known.wanted.Policies, stored.Spec.Policies) {
		out.inForce = true
		return out, nil
	}
	if invalid := set.keeping(known, stored.Spec.Policies); invalid != "" {
		out.why = "policy " + invalid + " is not valid"
		return out, nil
	}
	refused, err := o.refusals.current(ctx)
	if err != nil {
		return outlook{}, err
	}
	for _, cause := range change.Causes() {
		if halt := o.haltOf(ctx, refused, cause); halt.Holds(svc.Namespace) {
			out.why = whyKept(cause.Name, halt)
			return out, nil
		}
	}
	_, change.Refused = refused[client.ObjectKeyFromObject(svc)]
	out.grant = change.Grant()
	return out, nil
}

// whyKept says why Services keep what they have when the change of a policy has halted.
func whyKept(policy string, halt policies.Halt) string {
	if halt.All {
		return "the change of policy " + policy + " has stopped"
	}
	return fmt.Sprintf("the change of policy %s waits in namespace %s", policy, firstOf(halt.Namespaces, func(s string) string { return s }))
}

// keeping names an invalid policy by which a Service keeps what it has; empty for none.
func (s *servicePolicySet) keeping(known *knownOverride, shaped []string) string {
	if len(known.invalid) > 0 {
		return known.invalid[0]
	}
	for i := range s.invalid {
		if name := s.invalid[i].Name; slices.Contains(shaped, name) {
			return name
		}
	}
	return ""
}

// keep is what a Service has.
func keep(known *knownOverride, stored *v1alpha1.ServiceProxyRules) shaping {
	text := stored.Annotations[v1alpha1.AnnotationOverrides]
	grant := policies.ReadOverrides
	if known != nil && known.text == text {
		grant = func(string) *v1alpha1.OverridesGrant { return known.grant }
	}
	out := shaping{annotation: text, kept: true, shape: render.Shape{Policies: stored.Spec.Policies}}
	if g := grant(text); g != nil {
		out.shape.Overrides = &g.Overrides
	}
	return out
}

// give is what a Service is to have.
func give(look outlook) (shaping, error) {
	out := shaping{shape: render.Shape{Overrides: &look.grant.Overrides, Policies: look.known.wanted.Policies}}
	if len(look.grant.Owners)+len(look.grant.By) == 0 {
		return out, nil
	}
	var err error
	out.annotation, err = encoded(look.grant)
	return out, err
}

// keeps notes that a Service keeps what it has until something else happens.
func (o *overrides) keeps(key types.NamespacedName) {
	o.pace.done(key)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept[key] = true
}

// settled notes that a Service has what its policies make of it.
func (o *overrides) settled(key types.NamespacedName) {
	o.pace.done(key)
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.kept, key)
}

// forget drops a Service that is gone or no longer eligible.
func (o *overrides) forget(key types.NamespacedName) {
	o.settled(key)
	o.policies.forget(key)
}

// newTerm forgets all Services: every one that there still is will be looked at again.
func (o *overrides) newTerm() {
	o.pace.newTerm()
	o.policies.newTerm()
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.kept)
}

// keeping returns the Services that keep what they have until something happens.
func (o *overrides) keeping() []types.NamespacedName {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]types.NamespacedName, 0, len(o.kept))
	for key := range o.kept {
		out = append(out, key)
	}
	return out
}
