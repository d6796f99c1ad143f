package watches

import (
	"context"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
)

// OnlyNodeProxy enqueues the one NodeProxy, whatever changes.
func OnlyNodeProxy() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.NodeProxyName}}}
	})
}

// OfKubernetes passes the EndpointSlices of the API servers.
func OfKubernetes() predicate.Predicate {
	return predicate.NewPredicateFuncs(func(o client.Object) bool {
		return o.GetNamespace() == metav1.NamespaceDefault && o.GetLabels()[discoveryv1.LabelServiceName] == objects.KubernetesService
	})
}

// Queue is the queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// SpecChanged passes the creation of NodeProxy, changes of its spec, and the end of a removal.
func SpecChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: predicate.GenerationChangedPredicate{}.Update, DeleteFunc: removalEnded}
}

// OnCreate passes the creation of NodeProxy, and the end of a removal.
func OnCreate() predicate.Predicate {
	return predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			return objects.BeingRemoved(e.ObjectOld.(*v1alpha1.NodeProxy)) && !objects.BeingRemoved(e.ObjectNew.(*v1alpha1.NodeProxy))
		},
		DeleteFunc: removalEnded,
	}
}

// removalEnded reports whether a removal of NodeProxy has ended. If it was interrupted, rendered
// objects still exist, and lack what has changed meanwhile.
func removalEnded(e event.DeleteEvent) bool {
	return objects.BeingRemoved(e.Object.(*v1alpha1.NodeProxy))
}

// Changed passes updates that change these parts of an object, and all other events.
func Changed[T client.Object](parts func(T) []any) predicate.Funcs {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !equality.Semantic.DeepEqual(parts(e.ObjectOld.(T)), parts(e.ObjectNew.(T)))
	}}
}

// Versions returns a handler for the versions of an object that an event is about: one if it was
// created or deleted, two if it was updated. It skips the initial list of objects.
func Versions(handle func(ctx context.Context, q Queue, versions []client.Object)) handler.Funcs {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q Queue) {
			if !e.IsInInitialList {
				handle(ctx, q, []client.Object{e.Object})
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q Queue) {
			handle(ctx, q, []client.Object{e.ObjectOld, e.ObjectNew})
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q Queue) { handle(ctx, q, []client.Object{e.Object}) },
	}
}

// ComesOrGoes passes creations and deletions.
func ComesOrGoes() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}
}

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
