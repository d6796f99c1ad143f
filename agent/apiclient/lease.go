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
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/pause"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=create;patch,namespace=nodeproxy-system

const (
	// appliedWait is how long the first Lease waits for a first set, and
	// appliedTick how often it is looked for.
	appliedWait = 5 * time.Second
	appliedTick = 250 * time.Millisecond
	// leasePause is how often the Lease is renewed.
	leasePause = 30 * time.Second
	// leaseTimeout is how long one renewal may take.
	leaseTimeout = 10 * time.Second
	// firstLeaseRetry and lastLeaseRetry bound the pauses after failures. The
	// controller must see soon that an agent is back.
	firstLeaseRetry = time.Second
	lastLeaseRetry  = 10 * time.Second
)

// lease is what the agent says in its Lease.
type lease struct {
	namespace, node string
	started         time.Time // of the agent, as in its status
	renewed         time.Time
	applied         string // newest ServiceProxyRules that the kernel holds
}

// LeaseRenewer renews the Lease that is the agent's heartbeat to the controller.
// It shares nothing with what programs the kernel but the resource version that
// is applied, so that a kernel that hangs does not look like a dead agent. When
// the agent stops, the Lease stays: an agent that restarts within its 90 seconds
// is never missed, and one that does not is.
type LeaseRenewer struct {
	clock     clock.Clock
	log       logr.Logger
	namespace string
	node      string
	started   time.Time
	write     func(ctx context.Context, l lease) error
	applied   func() string
	// share returns a number in [0,1): which part of a pause to take.
	share   func() float64
	metrics *Metrics
}

// Results of renewals of the Lease.
const (
	leaseWritten = "renewed"
	leaseFailed  = "failed"
)

// LeaseOptions are what a LeaseRenewer needs.
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

// NewLeaseRenewer returns a LeaseRenewer that does nothing until it runs.
func NewLeaseRenewer(o LeaseOptions) *LeaseRenewer {
	return &LeaseRenewer{
		clock: o.Clock, log: o.Log, namespace: o.Namespace, node: o.Node, started: o.Started,
		write: o.Client.applyLease, applied: o.Applied, share: rand.Float64,
		metrics: o.Metrics,
	}
}

// Run renews the Lease until ctx is done: at once, then after a part of the
// pause, so that agents that started together do not go on together, and then
// every 30 s. After failures it is the same. Without a namespace there is no Lease.
func (r *LeaseRenewer) Run(ctx context.Context) {
	if r.namespace == "" {
		return
	}
	r.awaitApplied(ctx)
	next := time.Duration(float64(leasePause) * r.share())
	retry, failure := firstLeaseRetry, ""
	for ctx.Err() == nil {
		err := r.renew(ctx)
		again := next
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if what := leaseAdvice(err, r.namespace); what != failure {
				failure = what
				r.log.Error(err, "Could not renew this agent's Lease; trying again. While it is not renewed, the controller reports this node as AgentNotResponding. The rules in the kernel are not affected", "lease", r.namespace+"/"+v1alpha1.AgentLeaseName(r.node), "whatToDo", what)
			}
			again = time.Duration(float64(retry) * (0.5 + r.share()/2))
			retry = min(2*retry, lastLeaseRetry)
		default:
			if failure != "" {
				r.log.Info("This agent's Lease is renewed again", "lease", r.namespace+"/"+v1alpha1.AgentLeaseName(r.node))
			}
			if retry != firstLeaseRetry {
				// Agents return together when the API server does.
				again = time.Duration(float64(leasePause) * r.share())
			}
			retry, failure, next = firstLeaseRetry, "", leasePause
		}
		pause.For(ctx, r.clock, again)
	}
}

// awaitApplied waits a moment for the first set: else the Lease of an agent that
// has been started again would say for half a minute that it has applied nothing,
// and the node would count as lagging.
func (r *LeaseRenewer) awaitApplied(ctx context.Context) {
	for spent := time.Duration(0); spent < appliedWait && r.applied() == "" && ctx.Err() == nil; spent += appliedTick {
		pause.For(ctx, r.clock, appliedTick)
	}
}

func (r *LeaseRenewer) renew(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	err := r.write(limited, lease{namespace: r.namespace, node: r.node, started: r.started, renewed: r.clock.Now(), applied: r.applied()})
	switch {
	case ctx.Err() != nil:
	case err == nil:
		r.metrics.renewals.WithLabelValues(leaseWritten).Inc()
	default:
		r.metrics.renewals.WithLabelValues(leaseFailed).Inc()
	}
	return err
}

// leaseAdvice says what to do about a Lease that cannot be written.
func leaseAdvice(err error, namespace string) string {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the namespace %s does not exist: create it (kubectl create namespace %s), or name the right one with --namespace", namespace, namespace)
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("the agent's identity may not write leases in the namespace %s: apply the agent's Role and bind it there (config/rbac)", namespace)
	case errors.Is(err, context.DeadlineExceeded):
		return "the API server is slow or does not answer: check that it runs and can be reached from this node"
	default:
		return advice(err)
	}
}

// applyLease writes the agent's Lease by server-side apply, which makes it if
// it is not there and needs to know nothing of what is. It is written without
// the types of its API group, which this client does not know.
func (c *Client) applyLease(ctx context.Context, l lease) error {
	name := v1alpha1.AgentLeaseName(l.node)
	body, err := json.Marshal(map[string]any{
		"apiVersion": "coordination.k8s.io/v1",
		"kind":       "Lease",
		"metadata": map[string]any{
			"name": name, "namespace": l.namespace,
			"annotations": map[string]string{v1alpha1.AnnotationAppliedResourceVersion: l.applied},
		},
		"spec": map[string]any{
			"holderIdentity":       l.node,
			"leaseDurationSeconds": v1alpha1.AgentLeaseSeconds,
			"acquireTime":          metav1.NewMicroTime(l.started.UTC()), // tells whether a status is of this run
			"renewTime":            metav1.NewMicroTime(l.renewed.UTC()),
		},
	})
	if err != nil {
		return fmt.Errorf("encoding the Lease: %w", err)
	}
	err = c.rest.Patch(types.ApplyYAMLPatchType).
		AbsPath("apis", "coordination.k8s.io", "v1", "namespaces", l.namespace, "leases", name).
		Param("fieldManager", fieldOwner).Param("force", "true").
		Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("applying the Lease %s/%s: %w", l.namespace, name, err)
	}
	return nil
}
