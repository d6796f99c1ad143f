package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/internal/connect"
)

const (
	// checkPause is the time between two checks of the requirements, and checkTimeout limits one.
	checkPause   = 3 * time.Second
	checkTimeout = 28 * time.Second
	// logPause is how often missing requirements are logged.
	logPause = time.Minute
	// installCRDs is what to do about the CRDs.
	installCRDs = "install those of this release: `kubectl apply -f config/crd/bases`, or apply its install.yaml"
)

// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,verbs=get,resourceNames=nodeproxies.nodeproxy.io;nodeproxypolicies.nodeproxy.io;nodeproxyrules.nodeproxy.io;serviceproxypolicies.nodeproxy.io;serviceproxyrules.nodeproxy.io

// requirements are what the controller needs before it does anything: an API server that answers,
// the CRDs of this release, and the namespace.
type requirements struct {
	config    *rest.Config
	http      *http.Client
	scheme    *runtime.Scheme
	namespace string
}

func newRequirements(config *rest.Config, scheme *runtime.Scheme, namespace string) (*requirements, error) {
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	return &requirements{config: config, http: httpClient, scheme: scheme, namespace: namespace}, nil
}

// check returns nil if all requirements are met, else what is missing, and what to do.
func (r *requirements) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	// A client caches the existing kinds, so each check has its own.
	c, err := client.New(r.config, client.Options{HTTPClient: r.http, Scheme: r.scheme})
	if err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	if err := checkRevisions(ctx, c); err != nil {
		return err
	}
	if err := checkServed(ctx, c); err != nil {
		return err
	}
	return r.checkNamespace(ctx, c)
}

func checkRevisions(ctx context.Context, c client.Reader) error {
	var missing, old []string
	for _, name := range []string{"nodeproxies", "nodeproxypolicies", "nodeproxyrules", "serviceproxypolicies", "serviceproxyrules"} {
		name += "." + v1alpha1.GroupVersion.Group
		crd := &metav1.PartialObjectMetadata{}
		crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		err := c.Get(ctx, client.ObjectKey{Name: name}, crd)
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, name)
		case apierrors.IsForbidden(err):
			return fmt.Errorf("the controller is not allowed to read the CRD %s; apply and bind the ClusterRole of this release (config/rbac): %w", name, err)
		case err != nil:
			return fmt.Errorf("read the CRD %s: %w", name, err)
		default:
			if found, enough := revision(crd.Annotations); !enough {
				old = append(old, fmt.Sprintf("%s (%s)", name, found))
			}
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("CRDs are missing: %s: %s", strings.Join(missing, ", "), installCRDs)
	}
	if len(old) > 0 {
		return fmt.Errorf("CRDs are older than this controller, which needs %s %d: %s: %s",
			v1alpha1.AnnotationSchemaRevision, v1alpha1.SchemaRevision, strings.Join(old, ", "), installCRDs)
	}
	return nil
}

// revision describes the revision of a CRD, and reports whether it is sufficient.
func revision(annotations map[string]string) (found string, enough bool) {
	text, has := annotations[v1alpha1.AnnotationSchemaRevision]
	if !has {
		return "it has none", false
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Sprintf("it has %q, which is not a number", text), false
	}
	return "it has " + text, number >= v1alpha1.SchemaRevision
}

// checkServed checks whether the API server serves the kinds, which it does soon after their CRDs
// are created.
func checkServed(ctx context.Context, c client.Reader) error {
	for kind, list := range map[string]client.ObjectList{
		"NodeProxy": &v1alpha1.NodeProxyList{}, "NodeProxyRules": &v1alpha1.NodeProxyRulesList{}, "ServiceProxyRules": &v1alpha1.ServiceProxyRulesList{},
		"NodeProxyPolicy": &v1alpha1.NodeProxyPolicyList{}, "ServiceProxyPolicy": &v1alpha1.ServiceProxyPolicyList{},
	} {
		err := c.List(ctx, list, client.Limit(1))
		switch {
		case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
			return fmt.Errorf("the API server does not serve the kind %s (%s) yet, although its CRD exists; if that persists, check the CRD's conditions with `kubectl describe crd`", kind, v1alpha1.GroupVersion)
		case apierrors.IsForbidden(err):
			return fmt.Errorf("the controller is not allowed to list %s; apply and bind the ClusterRole of this release (config/rbac): %w", kind, err)
		case err != nil:
			return fmt.Errorf("list %s: %w", kind, err)
		}
	}
	return nil
}

func (r *requirements) checkNamespace(ctx context.Context, c client.Reader) error {
	err := c.Get(ctx, client.ObjectKey{Name: r.namespace}, &corev1.Namespace{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the namespace %s of the leases does not exist; create it with `kubectl create namespace %s`, or name another with --namespace",
			r.namespace, r.namespace)
	}
	if err != nil {
		return fmt.Errorf("get the namespace %s: %w", r.namespace, err)
	}
	return nil
}

// await repeats the check until all requirements are met. It does not give up: the kubelet would
// restart the controller ever more slowly, and it would be back minutes after what was missing.
// note receives what is missing. False: ctx was done before.
func await(ctx context.Context, check func(context.Context) error, note func(error), clk clock.Clock, logger logr.Logger) bool {
	var logged string
	var at time.Time
	for {
		err := check(ctx)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			if logged != "" {
				logger.Info("All requirements of the controller are met")
			}
			return true
		}
		note(err)
		// That no API server answers is logged where it is found.
		if now := clk.Now(); !connect.NoAnswer(err) && (err.Error() != logged || now.Sub(at) >= logPause) {
			logged, at = err.Error(), now
			logger.Error(err, "The controller does not start yet; checking its requirements every 3 s")
		}
		select {
		case <-ctx.Done():
			return false
		case <-clk.After(checkPause):
		}
	}
}
