package formats

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// Reconciler follows which versions the agents know, and has everything rendered again when the
// version to write changes.
type Reconciler struct {
	Leadership leader.Leadership
	Formats    *Formats
	Changed    func() // has everything rendered again
}

// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxyrules,verbs=list;watch

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager, o controller.Options) error {
	return builder.ControllerManagedBy(mgr).
		Named("format").
		Watches(&v1alpha1.NodeProxyRules{}, watches.OnlyNodeProxy(), builder.WithPredicates(formatsChanged())).
		WithOptions(o).
		Complete(leader.Guard(r.Leadership, r))
}

// formatsChanged passes changes of the versions that nodes know.
func formatsChanged() predicate.Predicate {
	return watches.Updated(func(old, rules *v1alpha1.NodeProxyRules) bool {
		before, after := old.Status.Agent, rules.Status.Agent
		if before == nil || after == nil {
			return before != after
		}
		return !equality.Semantic.DeepEqual(before.FormatVersions, after.FormatVersions)
	})
}

// Reconcile negotiates again.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	changed, err := r.Formats.negotiate(ctx)
	if err == nil && changed {
		r.Changed()
	}
	return ctrl.Result{}, err
}
