package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// mirror hands what a reflector sees to the store, without keeping a second
// copy of it. A list arrives as one piece, so that it is never taken for a
// series of changes.
type mirror[T metav1.Object] struct {
	replace func([]T)
	set     func(T)
	remove  func(T)
	log     logr.Logger // with the name of the resource
}

// taken logs what the store has just taken in: an agent that does not act may not
// know.
func (m *mirror[T]) taken(event string, object T) {
	if log := m.log.V(4); log.Enabled() { // there are many
		log.Info("Taken from the API", "event", event, "name", object.GetName(), "resourceVersion", object.GetResourceVersion())
	}
}

// Add implements cache.ReflectorStore.
func (m *mirror[T]) Add(object any) error { return m.Update(object) }

// Update implements cache.ReflectorStore.
func (m *mirror[T]) Update(object any) error {
	o, err := stripped[T](object)
	if err == nil {
		m.set(o)
		m.taken("changed", o)
	}
	return err
}

// Delete implements cache.ReflectorStore. The object is its last state.
func (m *mirror[T]) Delete(object any) error {
	o, err := stripped[T](object)
	if err == nil {
		m.remove(o)
		m.taken("deleted", o)
	}
	return err
}

// Replace implements cache.ReflectorStore.
func (m *mirror[T]) Replace(list []any, _ string) error {
	objects := make([]T, 0, len(list))
	for _, object := range list {
		o, err := stripped[T](object)
		if err != nil {
			return err
		}
		objects = append(objects, o)
	}
	m.replace(objects)
	for _, o := range objects {
		m.taken("listed", o)
	}
	m.log.V(4).Info("Taken a whole list from the API", "objects", len(objects))
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to do.
func (*mirror[T]) Resync() error { return nil }

// Transformer lets the reflector strip objects as they come, before it has
// gathered a whole list.
func (*mirror[T]) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return stripped[T](object) }
}

// stripped returns the object without what the agent never reads: it keeps
// all of them in memory.
func stripped[T metav1.Object](object any) (T, error) {
	o, ok := object.(T)
	if !ok {
		return o, fmt.Errorf("watched object is a %T", object)
	}
	o.SetManagedFields(nil)
	// kubectl apply leaves a second copy of the whole object here.
	delete(o.GetAnnotations(), "kubectl.kubernetes.io/last-applied-configuration")
	return o, nil
}

// watcher watches one resource and says when that fails.
type watcher struct {
	client   *Client
	resource string
	name     string // of the only object; empty: all
	example  runtime.Object
	list     func() runtime.Object
	store    cache.ReflectorStore
	trouble  *apiTrouble
	clock    clock.Clock
}

// run watches until ctx is done.
func (w *watcher) run(ctx context.Context) {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list := w.list()
			err := w.client.rest.Get().Resource(w.resource).
				VersionedParams(w.narrow(&options), w.client.params).Do(ctx).Into(list)
			if err != nil {
				w.trouble.failed(ctx, w.resource, err)
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			started, err := w.client.rest.Get().Resource(w.resource).
				VersionedParams(w.narrow(&options), w.client.params).Watch(ctx)
			if err != nil {
				w.trouble.failed(ctx, w.resource, err)
				return nil, err
			}
			w.trouble.watching(w.resource)
			return started, nil
		},
	}
	// The reflector has pauses of its own, between watches that are refused a
	// connection. Its default grows to a minute, which is how long the rules of
	// before would stay after an outage.
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 8 * time.Second}
	reflector := cache.NewReflectorWithOptions(lw, w.example, w.store, cache.ReflectorOptions{Name: w.resource, Backoff: &backoff})
	// Not reflector.RunWithContext, which logs every failure in its own way.
	_ = backoff.DelayWithReset(w.clock, time.Minute).Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			w.trouble.log.V(2).Info("A watch has ended; starting it again", "resource", w.resource, "err", err.Error())
		}
		return false, nil
	}) // ends only with ctx
}

// narrow restricts a request to the only object that is watched.
func (w *watcher) narrow(options *metav1.ListOptions) *metav1.ListOptions {
	if w.name != "" {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", w.name).String()
	}
	return options
}

// What the agent watches.
const (
	resourceServices = "serviceproxyrules"
	resourceProxies  = "nodeproxies"
	resourceNodes    = "nodeproxyrules"
)

// watchers returns what the agent watches: all ServiceProxyRules, the NodeProxy
// and its own NodeProxyRules. changed is called after every event.
func watchers(client *Client, clk clock.Clock, s *store, trouble *apiTrouble, changed func()) []*watcher {
	log := func(resource string) logr.Logger { return trouble.log.WithValues("resource", resource) }
	services := &mirror[*v1alpha1.ServiceProxyRules]{
		log:     log(resourceServices),
		replace: func(list []*v1alpha1.ServiceProxyRules) { s.replaceServices(list); changed() },
		set:     func(o *v1alpha1.ServiceProxyRules) { s.setService(o); changed() },
		remove:  func(o *v1alpha1.ServiceProxyRules) { s.deleteService(o); changed() },
	}
	proxies := &mirror[*v1alpha1.NodeProxy]{
		log: log(resourceProxies),
		replace: func(list []*v1alpha1.NodeProxy) {
			if len(list) == 0 {
				s.setProxy(nil)
			}
			for _, o := range list {
				s.setProxy(o)
			}
			changed()
		},
		set:    func(o *v1alpha1.NodeProxy) { s.setProxy(o); changed() },
		remove: func(o *v1alpha1.NodeProxy) { s.dropProxy(o); changed() },
	}
	own := &mirror[*v1alpha1.NodeProxyRules]{
		log: log(resourceNodes),
		replace: func(list []*v1alpha1.NodeProxyRules) {
			if len(list) == 0 {
				s.missRules()
			}
			for _, o := range list {
				s.setRules(o)
			}
			changed()
		},
		set:    func(o *v1alpha1.NodeProxyRules) { s.setRules(o); changed() },
		remove: func(*v1alpha1.NodeProxyRules) { s.missRules(); changed() },
	}
	return []*watcher{
		{client: client, resource: resourceServices, example: &v1alpha1.ServiceProxyRules{},
			list: func() runtime.Object { return &v1alpha1.ServiceProxyRulesList{} }, store: services, trouble: trouble, clock: clk},
		{client: client, resource: resourceProxies, name: v1alpha1.NodeProxyName, example: &v1alpha1.NodeProxy{},
			list: func() runtime.Object { return &v1alpha1.NodeProxyList{} }, store: proxies, trouble: trouble, clock: clk},
		{client: client, resource: resourceNodes, name: s.nodeName, example: &v1alpha1.NodeProxyRules{},
			list: func() runtime.Object { return &v1alpha1.NodeProxyRulesList{} }, store: own, trouble: trouble, clock: clk},
	}
}

// troublePause is how often lasting trouble with the API is logged again.
const troublePause = time.Minute

// apiTrouble says in the log when the API cannot be read, why, and what to do.
type apiTrouble struct {
	clock   clock.PassiveClock
	log     logr.Logger
	changed func(resource string, failing bool)

	mu   sync.Mutex           // guards what follows
	last map[string]complaint // by resource
}

type complaint struct {
	err    string
	advice string
	at     time.Time
}

func newAPITrouble(clk clock.PassiveClock, log logr.Logger, changed func(resource string, failing bool)) *apiTrouble {
	return &apiTrouble{clock: clk, log: log, changed: changed, last: map[string]complaint{}}
}

// watching notes that a watch has started: nothing is wrong any more. A list
// alone does not show that, as the watch after it may fail.
func (t *apiTrouble) watching(resource string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, failing := t.last[resource]; failing {
		delete(t.last, resource)
		t.changed(resource, false)
		t.log.Info("The API answers again", "resource", resource)
	}
}

// failed notes that a list or a watch has failed.
func (t *apiTrouble) failed(ctx context.Context, resource string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err) {
		return // we are stopping, or the reflector goes on by itself
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	what := advice(err)
	now := t.clock.Now()
	last, failing := t.last[resource]
	if failing && last.advice == what && now.Sub(last.at) < troublePause {
		return
	}
	t.last[resource] = complaint{err: err.Error(), advice: what, at: now}
	t.changed(resource, true)
	t.log.Error(err, "Could not read from the API; trying again, the rules in the kernel stay as they are", "resource", resource, "whatToDo", what)
}

// quiet reports whether nothing is known to be wrong with the API.
func (t *apiTrouble) quiet() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.last) == 0
}

// why says what is wrong with the API, for people; empty: nothing is known.
func (t *apiTrouble) why() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, resource := range slices.Sorted(maps.Keys(t.last)) {
		return resource + ": " + t.last[resource].err
	}
	return ""
}

// advice says what to do about an error from the API.
func advice(err error) string {
	switch {
	case apierrors.IsNotFound(err):
		return "the kinds of nodeproxy.io are not installed in this cluster: apply the install.yaml of this release, or its config/crd/bases"
	case apierrors.IsUnauthorized(err):
		return "the API server does not accept the agent's credentials: check --kubeconfig; in a pod, delete the pod, so that it gets a new token"
	case apierrors.IsForbidden(err):
		return "the agent's identity may not read this kind: apply the install.yaml of this release, or the agent's roles and their bindings in config/rbac"
	default:
		return "check that the API server runs and can be reached from this node by its real address (--api-server, --api-servers-file, --kubeconfig)"
	}
}
