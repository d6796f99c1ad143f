package apiclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/pause"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=create;patch,namespace=nodeproxy-system

const (
	// appliedWait is how long the first renewal waits for a first complete state, and appliedTick
	// how often it checks.
	appliedWait = 5 * time.Second
	appliedTick = 250 * time.Millisecond
	// leasePause is the pause between renewals.
	leasePause = 30 * time.Second
	// leaseTimeout bounds one renewal.
	leaseTimeout = 10 * time.Second
	// firstLeaseRetry and lastLeaseRetry bound the pauses after failures. They are short, because
	// the controller must notice soon that an agent is back.
	firstLeaseRetry = time.Second
	lastLeaseRetry  = 10 * time.Second

	// Results of renewals.
	leaseWritten = "renewed"
	leaseFailed  = "failed"
)

// lease is the content of the agent's Lease.
type lease struct {
	namespace, node string
	started         time.Time // of the agent, as in its status
	renewed         time.Time
	applied         string // the newest ServiceProxyRules version that the kernel has
}

// LeaseOptions configure a LeaseRenewer.
type LeaseOptions struct {
	Client *Client
	Clock  clock.Clock
	Log    logr.Logger
	// Namespace is that of the Lease. Empty: there is none.
	Namespace, Node string
	Started         time.Time
	// Applied returns the newest resource version that the kernel has; empty: none yet.
	Applied func() string
	Metrics *Metrics
}

// LeaseRenewer renews the Lease that is the agent's heartbeat to the controller. It shares nothing
// with what programs the kernel but the applied resource version, so that a kernel that hangs does
// not look like a dead agent. The Lease of a stopped agent stays: an agent that restarts within
// its 90 seconds is never missed.
type LeaseRenewer struct {
	LeaseOptions
	write func(ctx context.Context, l lease) error
	// share returns a random part of a pause, in [0,1).
	share func() float64
}

// NewLeaseRenewer returns a LeaseRenewer that does nothing until it runs.
func NewLeaseRenewer(o LeaseOptions) *LeaseRenewer {
	return &LeaseRenewer{LeaseOptions: o, write: o.Client.writeLease, share: rand.Float64}
}

// Run renews the Lease until ctx is done: at once, then after a random part of the pause, to spread
// agents that started together, and then every 30 s. The same applies after failures, because
// agents return together when the API server does. Without a namespace there is no Lease.
func (r *LeaseRenewer) Run(ctx context.Context) {
	if r.Namespace == "" {
		return
	}
	r.awaitApplied(ctx)
	spread := true
	retry, failure := firstLeaseRetry, ""
	name := r.Namespace + "/" + v1alpha1.AgentLeaseName(r.Node)
	for ctx.Err() == nil {
		err := r.renew(ctx)
		wait := leasePause
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if what := leaseAdvice(err, r.Namespace); what != failure {
				failure = what
				r.Log.Error(err, "Could not renew this agent's Lease; retrying", "lease", name,
					"effect", "the controller reports this node as AgentNotResponding; the rules in the kernel are not affected", "whatToDo", what)
			}
			wait = time.Duration(float64(retry) * (0.5 + r.share()/2))
			retry = min(2*retry, lastLeaseRetry)
			spread = true
		default:
			if failure != "" {
				r.Log.Info("This agent's Lease is renewed again", "lease", name)
			}
			if spread {
				wait = time.Duration(float64(leasePause) * r.share())
			}
			retry, failure, spread = firstLeaseRetry, "", false
		}
		pause.For(ctx, r.Clock, wait)
	}
}

// awaitApplied waits a moment for a first complete state: otherwise the Lease of a restarted agent
// would report for half a minute that nothing is applied, and the node would count as lagging.
func (r *LeaseRenewer) awaitApplied(ctx context.Context) {
	for spent := time.Duration(0); spent < appliedWait && r.Applied() == "" && ctx.Err() == nil; spent += appliedTick {
		pause.For(ctx, r.Clock, appliedTick)
	}
}

func (r *LeaseRenewer) renew(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	err := r.write(limited, lease{namespace: r.Namespace, node: r.Node, started: r.Started, renewed: r.Clock.Now(), applied: r.Applied()})
	result := leaseWritten
	if err != nil {
		result = leaseFailed
	}
	if ctx.Err() == nil {
		r.Metrics.renewals.WithLabelValues(result).Inc()
	}
	return err
}

// leaseAdvice is the remedy for a Lease that cannot be written.
func leaseAdvice(err error, namespace string) string {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the namespace %s does not exist: create it (kubectl create namespace %s), or name the right one with --namespace", namespace, namespace)
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("the agent's identity has no permission to write leases in the namespace %s: apply the agent's Role and bind it there (config/rbac)", namespace)
	case errors.Is(err, context.DeadlineExceeded):
		return "the API server is slow or does not answer: check that it runs and can be reached from this node"
	default:
		return advice(err)
	}
}

// writeLease writes the agent's Lease, and creates it if necessary. It uses no types of its API group,
// which this client does not know. A merge patch takes the API server half the time of server-side
// apply, and thousands of agents renew Leases.
func (c *Client) writeLease(ctx context.Context, l lease) error {
	name := v1alpha1.AgentLeaseName(l.node)
	object := map[string]any{
		"apiVersion": "coordination.k8s.io/v1",
		"kind":       "Lease",
		"metadata": map[string]any{
			"name": name, "namespace": l.namespace,
			"annotations": map[string]string{v1alpha1.AnnotationAppliedResourceVersion: l.applied},
		},
		"spec": map[string]any{
			"holderIdentity":       l.node,
			"leaseDurationSeconds": v1alpha1.AgentLeaseSeconds,
			"acquireTime":          metav1.NewMicroTime(l.started.UTC()), // shows whether a status is of this run
			"renewTime":            metav1.NewMicroTime(l.renewed.UTC()),
		},
	}
	send := func(request *rest.Request, further ...string) error {
		body, err := json.Marshal(object)
		if err != nil {
			return fmt.Errorf("encoding the Lease: %w", err)
		}
		path := append([]string{"apis", "coordination.k8s.io", "v1", "namespaces", l.namespace, "leases"}, further...)
		return request.AbsPath(path...).Param("fieldManager", fieldOwner).Body(body).Do(ctx).Error()
	}
	err := send(c.rest.Patch(types.MergePatchType), name)
	if apierrors.IsNotFound(err) {
		err = send(c.rest.Post().SetHeader("Content-Type", "application/json"))
	}
	if err != nil {
		return fmt.Errorf("writing the Lease %s/%s: %w", l.namespace, name, err)
	}
	return nil
}
