package watches

import (
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
)

// Setup is what adding a reconciler to a manager takes.
type Setup struct {
	Manager    ctrl.Manager
	Options    controller.Options
	Leadership leader.Leadership
	// Wake triggers the reconciler although no object has changed, as for NodeProxy. Nil: never.
	Wake <-chan event.GenericEvent
}

// Watch triggers a reconciler by the events of a kind.
type Watch struct {
	Object  client.Object
	Handler handler.EventHandler
	When    []predicate.Predicate
}

// On triggers a reconciler that has one item, NodeProxy.
func On(o client.Object, when ...predicate.Predicate) Watch {
	return Watch{Object: o, Handler: OnlyNodeProxy(), When: when}
}

// Add adds a reconciler that works only while this process leads.
func (s Setup) Add(name string, r reconcile.Reconciler, all ...Watch) error {
	b := builder.ControllerManagedBy(s.Manager).Named(name).WithOptions(s.Options)
	for _, w := range all {
		b = b.Watches(w.Object, w.Handler, builder.WithPredicates(w.When...))
	}
	if s.Wake != nil {
		b = b.WatchesRawSource(source.Channel(s.Wake, OnlyNodeProxy()))
	}
	return b.Complete(leader.Guard(s.Leadership, r))
}
