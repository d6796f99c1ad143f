package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/hints"
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
	docs    hints.Docs
	clock   *clock
}

// NewReader returns a reader of the cluster of config. Its errors refer to docs. It sends no
// request yet.
func NewReader(config *rest.Config, docs hints.Docs) (*Reader, error) {
	config = rest.CopyConfig(config)
	if _, _, err := rest.DefaultServerUrlFor(config); err != nil {
		return nil, fmt.Errorf("%q is not the address of an API server: use https://HOST:PORT (in the kubeconfig, clusters[].cluster.server, or --server)", config.Host)
	}
	config.Timeout = cmp.Or(config.Timeout, patience)
	config.QPS, config.Burst = 50, 100
	config.WarningHandler = rest.NoWarnings{}
	serverClock := &clock{}
	config.Wrap(func(sends http.RoundTripper) http.RoundTripper { return watched{sends, serverClock} })
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, metav1.AddMetaToScheme, v1alpha1.AddToScheme} {
		if err := add(known); err != nil {
			return nil, fmt.Errorf("prepare to read: %w", err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: known, Mapper: mapper()})
	if err != nil {
		return nil, fmt.Errorf("no client for the API server %s: %w", config.Host, err)
	}
	return &Reader{client: c, scheme: known, server: config.Host, timeout: config.Timeout, docs: docs, clock: serverClock}, nil
}

// Read reads all objects of the required kinds, and of the optional ones those that are
// permitted: the others are in Objects.Unread. The caller sets Objects.Time and Ahead.
func (r *Reader) Read(ctx context.Context, required, optional []Kind) (*Objects, error) {
	objects := &Objects{}
	requested := slices.Concat(required, optional)
	errs := make([]error, len(requested))
	var all sync.WaitGroup
	for i, name := range requested {
		all.Go(func() { errs[i] = r.list(ctx, kinds()[name], objects) })
	}
	all.Wait()
	for i, err := range errs {
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil, fmt.Errorf("interrupted: %w", ctx.Err())
		case i < len(required) || !optionalError(err):
			return nil, r.explainRead(ctx, requested[i], err)
		default:
			objects.Unread = append(objects.Unread, Unread{Kind: requested[i], Why: r.explain(requested[i], err).Error()})
		}
	}
	return objects, nil
}

// optionalError reports whether other kinds may be readable although this one is not.
func optionalError(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
}

// list reads one kind, page by page. If the server drops pages meanwhile, it reads all at
// once.
func (r *Reader) list(ctx context.Context, k kind, into *Objects, only ...client.ListOption) error {
	err := k.read(ctx, r.client, into, pageSize, only...)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		err = k.read(ctx, r.client, into, 0, only...)
	}
	return err
}

// Node reads the NodeProxyRules of one node.
func (r *Reader) Node(ctx context.Context, name string) (*v1alpha1.NodeProxyRules, error) {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return nil, fmt.Errorf("%q is not a valid name of a node (kubectl get nodeproxyrules lists the nodes)", name)
	}
	rules := &v1alpha1.NodeProxyRules{}
	switch err := r.client.Get(ctx, client.ObjectKey{Name: name}, rules); {
	case err == nil:
		return rules, nil
	case apierrors.IsNotFound(err):
		return nil, r.unknownNode(ctx, name)
	default:
		return nil, r.explainRead(ctx, NodeProxyRules, err)
	}
}

// Name is the name of an object. Those of nodeproxy have no namespace.
type Name struct{ Namespace, Name string }

// String returns namespace/name.
func (n Name) String() string {
	if n.Namespace == "" {
		return n.Name
	}
	return n.Namespace + "/" + n.Name
}

// Compare orders by namespace, then name.
func (n Name) Compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// Names reads the names of all objects of a kind, sorted.
func (r *Reader) Names(ctx context.Context, of Kind) ([]Name, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kinds()[of].gvk)
	names := []Name{}
	for first := true; first || list.Continue != ""; first = false {
		if err := r.client.List(ctx, list, client.Limit(pageSize), client.Continue(list.Continue)); err != nil {
			return nil, r.explain(of, err)
		}
		for i := range list.Items {
			names = append(names, Name{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name})
		}
	}
	slices.SortFunc(names, Name.Compare)
	return names, nil
}
