package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
)

const (
	// pageSize is how many objects are requested at once.
	pageSize = 500
	// patience is the timeout of a request without --request-timeout.
	patience = 30 * time.Second
)

// Reader reads the objects of one cluster.
type Reader struct {
	client  client.Reader
	scheme  *runtime.Scheme
	server  string
	timeout time.Duration
	docs    Docs

	mu   sync.Mutex
	last time.Time
}

// NewReader returns a reader of the cluster of config. Its errors refer to docs. It sends no
// request yet.
func NewReader(config *rest.Config, docs Docs) (*Reader, error) {
	config = rest.CopyConfig(config)
	if _, _, err := rest.DefaultServerUrlFor(config); err != nil {
		return nil, fmt.Errorf("%q is not the address of an API server: use https://HOST:PORT (in the kubeconfig, clusters[].cluster.server, or --server)", config.Host)
	}
	config.Timeout = cmp.Or(config.Timeout, patience)
	config.QPS, config.Burst = 50, 100
	config.WarningHandler = rest.NoWarnings{}
	r := &Reader{scheme: runtime.NewScheme(), server: config.Host, timeout: config.Timeout, docs: docs}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return timed{next, r} })
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, discoveryv1.AddToScheme, metav1.AddMetaToScheme, v1alpha1.AddToScheme} {
		if err := add(r.scheme); err != nil {
			return nil, fmt.Errorf("prepare to read: %w", err)
		}
	}
	var err error
	if r.client, err = client.New(config, client.Options{Scheme: r.scheme, Mapper: mapper()}); err != nil {
		return nil, fmt.Errorf("no client for the API server %s: %w", config.Host, err)
	}
	return r, nil
}

// timed records the time of all responses. Times in objects are of the API server's clock, or
// of machines in sync with it; the clock of the plugin's machine may be wrong.
type timed struct {
	http.RoundTripper
	*Reader
}

// RoundTrip sends a request.
func (t timed) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(request)
	if err != nil {
		return response, err
	}
	if now, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if now.After(t.last) {
			t.last = now
		}
	}
	return response, nil
}

// Time is when the API server last responded, by its own clock; zero: unknown.
func (r *Reader) Time() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// Read reads all objects of the required kinds, and of the optional ones those that are
// permitted: the others are in Objects.Unread. The caller sets Objects.Time and Ahead.
func (r *Reader) Read(ctx context.Context, into *Objects, required, optional []Kind, only ...client.ListOption) error {
	into.Docs = r.docs
	requested := slices.Concat(required, optional)
	errs := make([]error, len(requested))
	var all sync.WaitGroup
	for i, name := range requested {
		all.Go(func() { errs[i] = r.list(ctx, kinds[name], into, only...) })
	}
	all.Wait()
	for i, err := range errs {
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted: %w", ctx.Err())
		case i >= len(required) && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)):
			into.Unread = append(into.Unread, Unread{Kind: requested[i], Why: r.explain(requested[i], err).Error()})
		default:
			return r.explainRead(ctx, requested[i], err)
		}
	}
	return nil
}

// ReadOwnPods reads only nodeproxy's own pods, if permitted.
func (r *Reader) ReadOwnPods(ctx context.Context, into *Objects) error {
	own, err := labels.NewRequirement(agentdeploy.LabelName, selection.In, []string{agentdeploy.Name, Controller})
	if err != nil {
		return fmt.Errorf("select nodeproxy's pods: %w", err)
	}
	return r.Read(ctx, into, nil, []Kind{Pods}, client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*own)})
}

// list reads one kind, page by page. If the server drops pages meanwhile, it reads all at
// once.
func (r *Reader) list(ctx context.Context, k kind, into *Objects, only ...client.ListOption) error {
	empty, err := r.scheme.New(k.GroupVersion().WithKind(k.Kind + "List"))
	if err != nil {
		return err
	}
	for _, page := range []int64{pageSize, 0} {
		err = k.store(into, func(visit func(client.Object) error) error {
			return r.each(ctx, empty, page, visit, only...)
		})
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			break
		}
	}
	return err
}

// each visits all objects of the kind of an empty list. Each page gets a list of its own,
// because visit may retain parts of its objects.
func (r *Reader) each(ctx context.Context, empty runtime.Object, page int64, visit func(client.Object) error, only ...client.ListOption) error {
	next := ""
	for first := true; first || next != ""; first = false {
		list := empty.DeepCopyObject().(client.ObjectList)
		if err := r.client.List(ctx, list, append(slices.Clone(only), client.Limit(page), client.Continue(next))...); err != nil {
			return err
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error { return visit(o.(client.Object)) }); err != nil {
			return err
		}
		next = list.GetContinue()
	}
	return nil
}

// Node reads the NodeProxyRules of one node.
func (r *Reader) Node(ctx context.Context, name string) (*v1alpha1.NodeProxyRules, error) {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return nil, fmt.Errorf("%q is not a valid name of a node (kubectl get nodeproxyrules lists the nodes)", name)
	}
	rules := &v1alpha1.NodeProxyRules{}
	err := r.client.Get(ctx, client.ObjectKey{Name: name}, rules)
	if apierrors.IsNotFound(err) {
		names, err := r.Names(ctx, NodeProxyRules)
		if err != nil {
			return nil, err
		}
		return nil, NoSuchNode(name, names)
	}
	if err != nil {
		return nil, r.explainRead(ctx, NodeProxyRules, err)
	}
	return rules, nil
}

// Names reads the names of all objects of a kind without namespaces, sorted.
func (r *Reader) Names(ctx context.Context, of Kind) ([]string, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kinds[of].GroupVersionKind)
	var names []string
	err := r.each(ctx, list, pageSize, func(o client.Object) error {
		names = append(names, o.GetName())
		return nil
	})
	if err != nil {
		return nil, r.explain(of, err)
	}
	slices.Sort(names)
	return names, nil
}

// explainRead is explain for an error of reading objects of a kind. One object that cannot be
// decoded spoils the whole list, and is named.
func (r *Reader) explainRead(ctx context.Context, of Kind, err error) error {
	if !unreadable(err) {
		return r.explain(of, err)
	}
	k := kinds[of]
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(k.GroupVersionKind)
	var undecodable error
	_ = r.each(ctx, list, pageSize, func(item client.Object) error { // its own error is less useful
		text, err := json.Marshal(item)
		if err != nil {
			return nil //nolint:nilerr // no object that was read
		}
		object, err := r.scheme.New(k.GroupVersionKind)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, object); err != nil {
			name := client.ObjectKeyFromObject(item).String()
			undecodable = fmt.Errorf("the %s %s cannot be decoded: %s; is its CRD that of this release? (kubectl get %s -o yaml shows all of them)",
				k.Kind, strings.TrimPrefix(name, "/"), oneLine(err.Error()), resource(of))
		}
		return undecodable
	})
	if undecodable != nil {
		return undecodable
	}
	return r.explain(of, err)
}
