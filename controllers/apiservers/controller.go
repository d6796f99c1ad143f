package apiservers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// probePause is the time between attempts to reach specified API servers that do not answer.
const probePause = 10 * time.Second

// actionTryAPIServers is the action of events about API servers.
const actionTryAPIServers = "Try"

var errServiceAddress = errors.New("this is the Service default/kubernetes, which the agents program themselves; specify the API servers' own addresses")

// Reconciler maintains the ConfigMap with the addresses of the API servers, which agents and
// controllers read as a file: those that NodeProxy specifies, else those of the Service
// default/kubernetes. It never writes an empty list, nor one without an address that answers. It must
// have one worker.
type Reconciler struct {
	Client    client.Client // reads come from the cache
	Probe     Probe
	Metrics   *metrics.Metrics
	Findings  *reports.Findings
	Events    *events.Recorder
	Namespace string

	answered  string   // the specified list of which one has answered
	answering []string // its part that agents get
}

// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxies,verbs=list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=list;watch;create;patch,resourceNames=nodeproxy-api-servers,namespace=nodeproxy-system

// Setup adds the reconciler to a manager.
func (r *Reconciler) Setup(s watches.Setup) error {
	return s.Add("apiservers", r,
		watches.On(&v1alpha1.NodeProxy{}, watches.SpecChanged()),
		watches.On(&discoveryv1.EndpointSlice{}, watches.OfKubernetes()),
		watches.On(&corev1.ConfigMap{}))
}

// Reconcile writes the ConfigMap if it differs.
func (r *Reconciler) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	np, err := objects.NodeProxy(ctx, r.Client)
	if err != nil {
		return ctrl.Result{}, err
	}
	if np == nil || np.DeletionTimestamp != nil {
		r.answered = ""
		r.Findings.Report(reports.AboutAPIServers, reports.Finding{})
		return ctrl.Result{}, nil
	}
	var urls []string
	if np.Spec.APIServer != nil && len(np.Spec.APIServer.Endpoints) > 0 {
		if urls, err = r.usable(ctx, np); err != nil {
			return ctrl.Result{}, err
		}
		if len(urls) == 0 {
			return ctrl.Result{RequeueAfter: probePause}, nil
		}
	} else {
		r.answered = ""
		found, err := objects.APIServerSlices(ctx, r.Client)
		if err != nil {
			return ctrl.Result{}, err
		}
		urls = agentdeploy.APIServers(found)
	}
	r.Findings.Report(reports.AboutAPIServers, reports.Finding{})
	if len(urls) == 0 {
		return ctrl.Result{}, nil // known ones are better than none
	}
	return ctrl.Result{}, r.write(ctx, urls)
}

// usable returns the specified API servers if one of them answers, and reports the errors if none
// does. It includes those that do not answer, because they may be down for a while, except for
// addresses of the Service, and reports them in an event. A list that has answered is not checked
// again.
func (r *Reconciler) usable(ctx context.Context, np *v1alpha1.NodeProxy) ([]string, error) {
	urls := np.Spec.APIServer.Endpoints
	list := agentdeploy.APIServersFile(urls)
	if r.answered == list {
		return r.answering, nil
	}
	failures, err := r.ask(ctx, urls)
	if err != nil {
		return nil, err
	}
	var texts, use []string
	for i, err := range failures {
		if err != nil {
			texts = append(texts, fmt.Sprintf("%s: %v", urls[i], err))
		}
		if !errors.Is(err, errServiceAddress) {
			use = append(use, urls[i])
		}
	}
	if len(texts) == len(urls) {
		r.Findings.Report(reports.AboutAPIServers, reports.Finding{
			Reason:  v1alpha1.ReasonAPIServerUnreachable,
			Message: "None of spec.apiServer.endpoints answers the controller, so agents retain their addresses. Correct the field, or remove it to use the EndpointSlice default/kubernetes: " + text.Clause(strings.Join(texts, "; ")) + ".",
		})
		return nil, nil
	}
	r.answered, r.answering = list, use
	if len(texts) > 0 {
		note := "Some of spec.apiServer.endpoints do not answer the controller. Correct the field if they are wrong; agents use the others: " + text.Clause(strings.Join(texts, "; ")) + "."
		log.FromContext(ctx).Info("Some API servers of spec.apiServer.endpoints do not answer; agents use the others", "why", texts)
		r.Events.WarnNodeProxy(np, v1alpha1.ReasonAPIServerUnreachable, actionTryAPIServers, note)
	}
	return use, nil
}

// ask probes all API servers at once and returns the error of each.
func (r *Reconciler) ask(ctx context.Context, urls []string) ([]error, error) {
	var service corev1.Service // without addresses if it does not exist
	if _, err := objects.Get(ctx, r.Client, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: objects.KubernetesService}, &service); err != nil {
		return nil, err
	}
	failures := make([]error, len(urls))
	var wait sync.WaitGroup
	for i, url := range urls {
		wait.Go(func() {
			if agentdeploy.IsServiceAddress(url, service.Spec.ClusterIPs) {
				failures[i] = errServiceAddress // it answers now, but not when it is needed
				return
			}
			failures[i] = r.Probe(ctx, url)
		})
	}
	wait.Wait()
	return failures, ctx.Err()
}

// write applies the ConfigMap if it differs.
func (r *Reconciler) write(ctx context.Context, urls []string) error {
	want := agentdeploy.APIServersFile(urls)
	stored, err := objects.Find[corev1.ConfigMap](ctx, r.Client, client.ObjectKey{Namespace: r.Namespace, Name: agentdeploy.APIServersName})
	if err != nil {
		return err
	}
	if stored != nil && stored.Data[agentdeploy.APIServersKey] == want {
		r.Metrics.Skip(metrics.KindConfigMap)
		return nil
	}
	apply := corev1ac.ConfigMap(agentdeploy.APIServersName, r.Namespace).
		WithData(map[string]string{agentdeploy.APIServersKey: want})
	if err := r.Client.Apply(ctx, apply, objects.FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply the ConfigMap %s/%s: %w", r.Namespace, agentdeploy.APIServersName, err)
	}
	r.Metrics.Wrote(metrics.KindConfigMap, metrics.OpApply)
	log.FromContext(ctx).Info("The addresses of the API servers have changed", "now", urls)
	return nil
}

// probeTimeout limits how long an API server takes to answer.
const probeTimeout = 5 * time.Second

// Probe returns nil if an API server of this cluster answers at a URL such as https://192.0.2.10:6443.
type Probe func(ctx context.Context, url string) error

// NewProbe returns a probe with the certificate authority, and the name in the certificates, of the
// controller's own configuration. It requests the version anonymously, so that no other server at an
// address that users have specified gets credentials.
func NewProbe(own *rest.Config) (Probe, error) {
	config := rest.AnonymousClientConfig(own)
	if config.ServerName == "" {
		server, _, err := rest.DefaultServerUrlFor(own)
		if err != nil {
			return nil, fmt.Errorf("parse the API server's address %q: %w", own.Host, err)
		}
		config.ServerName = server.Hostname()
	}
	return func(ctx context.Context, server string) error { return requestVersion(ctx, config, server) }, nil
}

func requestVersion(ctx context.Context, config *rest.Config, server string) error {
	// Read each time, because the file with the authority may change.
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return fmt.Errorf("set up TLS: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	address, err := url.Parse(server)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.JoinPath("version").String(), http.NoBody)
	if err != nil {
		return err
	}
	direct := &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: tls, DisableKeepAlives: true,
			DialContext: (&net.Dialer{Timeout: probeTimeout}).DialContext,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := direct.Do(request)
	if err != nil {
		if where, ok := errors.AsType[*url.Error](err); ok { // the URL is known already
			err = where.Err
		}
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no answer within %s", probeTimeout)
		}
		return err
	}
	defer func() { _ = response.Body.Close() }() // only its status matters
	switch response.StatusCode {
	case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden: // it need not know us
		return nil
	}
	return fmt.Errorf("it answers %q, which no working API server does", response.Status)
}
