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
	// Wake triggers the reconciler although no object has changed. Nil: never.
	Wake <-chan event.GenericEvent
}

// Watch adds what triggers a reconciler.
type Watch func(*builder.Builder) *builder.Builder

// By triggers a reconciler by the events of a kind.
func By(o client.Object, h handler.EventHandler, when ...predicate.Predicate) Watch {
	return func(b *builder.Builder) *builder.Builder { return b.Watches(o, h, builder.WithPredicates(when...)) }
}

// On triggers a reconciler that has one item, NodeProxy.
func On(o client.Object, when ...predicate.Predicate) Watch {
	return By(o, OnlyNodeProxy(), when...)
}

// Channel triggers a reconciler although no object has changed. Nil: never.
func Channel(events <-chan event.GenericEvent, h handler.EventHandler) Watch {
	return func(b *builder.Builder) *builder.Builder {
		if events == nil {
			return b
		}
		return b.WatchesRawSource(source.Channel(events, h))
	}
}

// Add adds a reconciler that has one item, NodeProxy, and works only while this process leads.
func (s Setup) Add(name string, r reconcile.Reconciler, all ...Watch) error {
	return s.Complete(name, leader.Guard(s.Leadership, r), append(all, Channel(s.Wake, OnlyNodeProxy()))...)
}

// Complete adds a reconciler, but no trigger by Wake. Its caller guards it.
func (s Setup) Complete(name string, guarded reconcile.Reconciler, all ...Watch) error {
	b := builder.ControllerManagedBy(s.Manager).Named(name).WithOptions(s.Options)
	for _, watch := range all {
		b = watch(b)
	}
	return b.Complete(guarded)
}
