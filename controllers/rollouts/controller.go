package rollouts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/nodesettings"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/rollout"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

const (
	// rolloutInterval is the least time between two passes over all nodes.
	rolloutInterval = 200 * time.Millisecond
	// statusInterval is the least time between two writes of a policy's status if only counts and
	// messages differ.
	statusInterval = time.Second
)

// Reconciler gives changed settings to nodes with rules, one after the other, and writes the status
// of NodeProxyPolicies. It runs once at a time, and all its decisions follow from objects: a
// restart during a rollout changes nothing.
type Reconciler struct {
	Client   client.Client // reads come from the cache
	Clock    clock.PassiveClock
	Metrics  *metrics.Metrics
	Findings *reports.Findings
	Events   *events.Recorder

	lastPass time.Time
	// The following only saves work, or bridges the delay of the cache.
	set           *nodesettings.PolicySet
	fingerprint   string // of the objects that set was read from
	revisions     revisions
	written       map[string]*v1alpha1.NodeProxyRules // writes that the cache may not have yet, by name
	statusWritten map[string]time.Time                // when the status of a policy was written, by name
}

// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxyrules,verbs=list;watch;update
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxypolicies,verbs=list;watch
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxypolicies/status,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(s watches.Setup) error {
	r.revisions = revisions{}
	r.written = map[string]*v1alpha1.NodeProxyRules{}
	r.statusWritten = map[string]time.Time{}
	return s.Add("rollout", r,
		watches.On(&v1alpha1.NodeProxy{}, watches.Changed(func(np *v1alpha1.NodeProxy) []any { return []any{np.Generation, objects.BeingRemoved(np)} })),
		watches.On(&v1alpha1.NodeProxyPolicy{}, predicate.GenerationChangedPredicate{}),
		watches.On(&corev1.Node{}, watches.Changed(func(node *corev1.Node) []any { return []any{render.Linux(node), node.Labels} })),
		// The settings, and what the node reports about them, but not endpoints and counters.
		watches.On(&v1alpha1.NodeProxyRules{}, watches.Changed(func(r *v1alpha1.NodeProxyRules) []any {
			return []any{
				r.Spec.SettingsRevision, r.Status.SettingsRevision, r.Annotations[v1alpha1.AnnotationRollout],
				reports.Absent(r), nothingAtRisk(r), nodeReport(r), r.Spec.Policies, r.Spec.Settings,
			}
		})))
}

// Reconcile makes a pass over all nodes, gives changed settings to the next ones, and reports the
// progress in the status of all policies.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if wait := rolloutInterval - r.Clock.Since(r.lastPass); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	r.lastPass = r.Clock.Now()
	p, err := r.read(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	p.decide(r.Clock.Now())
	again, err := r.write(ctx, p)
	r.Findings.Report(reports.AboutRollout, p.finding())
	r.Metrics.ShowRollouts(p.decision.States)
	behind, statusErr := r.writeStatuses(ctx, p)
	if err := errors.Join(err, statusErr); err != nil {
		return ctrl.Result{}, err
	}
	var next time.Duration
	if !p.decision.Next.IsZero() {
		next = max(p.decision.Next.Sub(r.Clock.Now()), rolloutInterval)
	}
	if again || behind {
		next = rolloutInterval
	}
	return ctrl.Result{RequeueAfter: next}, nil
}

func (r *Reconciler) read(ctx context.Context) (*pass, error) {
	np, err := objects.NodeProxy(ctx, r.Client)
	if err != nil {
		return nil, err
	}
	if objects.BeingRemoved(np) {
		np = nil
	}
	var all v1alpha1.NodeProxyPolicyList
	var nodes corev1.NodeList
	var rules v1alpha1.NodeProxyRulesList
	for _, list := range []client.ObjectList{&all, &nodes, &rules} {
		if err := r.Client.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	r.catchUp(rules.Items)
	if now := nodesettings.Fingerprint(np, all.Items); r.set == nil || r.fingerprint != now {
		r.set, r.fingerprint = nodesettings.NewPolicySet(np, all.Items), now
	}
	r.set.Refresh(all.Items)
	r.revisions.retain(rules.Items)
	f := &fleet{set: r.set, now: r.Clock.Now(), on: np != nil, revisions: r.revisions}
	return newPass(r.set, np, f.nodes(nodes.Items, rules.Items)), nil
}

// catchUp replaces rules in the cache that are older than this reconciler's own writes. Otherwise
// the same budget could be used twice.
func (r *Reconciler) catchUp(rules []v1alpha1.NodeProxyRules) {
	seen := map[string]bool{}
	for i := range rules {
		written := r.written[rules[i].Name]
		if written == nil {
			continue
		}
		if written.UID == rules[i].UID && objects.Older(rules[i].ResourceVersion, written.ResourceVersion) {
			rules[i] = *written
			seen[written.Name] = true
		}
	}
	maps.DeleteFunc(r.written, func(name string, _ *v1alpha1.NodeProxyRules) bool { return !seen[name] })
}

// write gives nodes their settings. Again: another write came first for some node, so there must be
// another pass soon.
func (r *Reconciler) write(ctx context.Context, p *pass) (again bool, err error) {
	var errs []error
	store := func(m *fleetNode, g v1alpha1.SettingsGrant, what string) {
		switch err := r.store(ctx, m, g); {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			again = true
			p.notGiven(m)
		case err != nil:
			errs = append(errs, err)
			p.notGiven(m)
		default:
			log.FromContext(ctx).V(2).Info(what, "nodeProxyRules", klog.KObj(m.rules), "revision", g.Revision, "by", g.By)
		}
	}
	for i := range p.nodes {
		if m := &p.nodes[i]; m.renew {
			store(m, nodesettings.NewGrant(m.resolution, m.By, m.Given), "Renewed the grant of a node")
		}
	}
	for _, name := range p.decision.Grants {
		m := p.find(name)
		if m.resolution == nil {
			continue
		}
		var by []v1alpha1.Cause
		if !m.Idle {
			by = rollout.By(m.Causes, p.set.Budgets)
		}
		store(m, nodesettings.NewGrant(m.resolution, by, p.now), "Granted a node its settings")
	}
	return again, errors.Join(errs...)
}

func (r *Reconciler) store(ctx context.Context, m *fleetNode, g v1alpha1.SettingsGrant) error {
	next, err := nodesettings.WithSettings(m.rules, m.resolution, g)
	if err != nil {
		return err
	}
	objects.Stamp(&next.ObjectMeta, r.Clock.Now())
	if err := r.Client.Update(ctx, next); err != nil {
		return fmt.Errorf("update NodeProxyRules %s: %w", next.Name, err)
	}
	r.written[next.Name] = next
	r.Metrics.Wrote(metrics.KindNode, metrics.OpUpdate)
	return nil
}

// writeStatuses writes the status of every policy that differs. Again: some are still to be
// written, because another write came first, or the last one was a moment ago.
func (r *Reconciler) writeStatuses(ctx context.Context, p *pass) (again bool, err error) {
	now := r.Clock.Now()
	maps.DeleteFunc(r.statusWritten, func(name string, _ time.Time) bool { return !p.set.Exists(name) })
	var errs []error
	for _, policy := range p.set.All {
		status := p.status(policy, now)
		switch {
		case equality.Semantic.DeepEqual(policy.Status, *status):
			r.Metrics.Skip(metrics.KindPolicyStatus)
			continue
		case sameState(&policy.Status, status) && now.Sub(r.statusWritten[policy.Name]) < statusInterval:
			again = true
			continue
		}
		changed := policy.DeepCopy()
		changed.Status = *status
		switch err := r.Client.Status().Update(ctx, changed); {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			again = true
		case err != nil:
			errs = append(errs, fmt.Errorf("update the status of NodeProxyPolicy %s: %w", policy.Name, err))
		default:
			r.statusWritten[policy.Name] = now
			r.Metrics.Wrote(metrics.KindPolicyStatus, metrics.OpUpdate)
			r.recordTransition(policy, changed)
		}
	}
	return again, errors.Join(errs...)
}

// recordTransition writes an event if the condition Ready of a policy has another reason.
func (r *Reconciler) recordTransition(before, after *v1alpha1.NodeProxyPolicy) {
	was, is := reports.Ready(before.Status.Conditions), reports.Ready(after.Status.Conditions)
	if what, worth := Transition(was.Reason, is.Reason); worth {
		r.Events.TransitionOfPolicy(before, "NodeProxyPolicy", what, fmt.Sprintf("Generation %d: %s", after.Generation, is.Message))
	}
}

// sameState reports whether statuses only differ in counts and messages.
func sameState(before, after *v1alpha1.NodeProxyPolicyStatus) bool {
	return before.ObservedGeneration == after.ObservedGeneration &&
		reports.Ready(before.Conditions).Reason == reports.Ready(after.Conditions).Reason &&
		len(before.Conditions) == len(after.Conditions)
}
