package agent

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

// leaseKeeper tells the controller that the agent lives, by renewing a Lease.
// It shares nothing with what programs the kernel but the number of what is
// applied, so that a kernel that hangs does not look like a dead agent. When
// the agent stops, the Lease is left as it is: an agent that is restarted
// within its 90 seconds was never missed, and one that is not will be.
type leaseKeeper struct {
	clock     clock.Clock
	log       logr.Logger
	namespace string
	node      string
	started   time.Time
	write     func(ctx context.Context, l lease) error
	applied   func() string
	// share returns a number in [0,1): which part of a pause to take.
	share  func() float64
	result func(ok bool)
}

func (a *Agent) leaseKeeper() *leaseKeeper {
	return &leaseKeeper{
		clock: a.options.Clock, log: a.log, namespace: a.options.Namespace, node: a.options.NodeName, started: a.started,
		write: a.options.Client.applyLease, applied: a.store.appliedVersion,
		share: rand.Float64, result: a.metrics.leaseRenewed,
	}
}

// run renews the Lease until ctx is done: at once, then after a part of the
// pause, so that agents that started together do not go on together, and then
// every 30 s. After failures it is the same. Without a namespace there is no Lease.
func (k *leaseKeeper) run(ctx context.Context) {
	if k.namespace == "" {
		return
	}
	k.awaitApplied(ctx)
	next := time.Duration(float64(leasePause) * k.share())
	retry, failure := firstLeaseRetry, ""
	for ctx.Err() == nil {
		err := k.renew(ctx)
		pause := next
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if what := leaseAdvice(err, k.namespace); what != failure {
				failure = what
				k.log.Error(err, "Could not renew this agent's Lease; trying again. While it is not renewed, the controller reports this node as AgentNotResponding. The rules in the kernel are not affected", "lease", k.namespace+"/"+v1alpha1.AgentLeaseName(k.node), "whatToDo", what)
			}
			pause = time.Duration(float64(retry) * (0.5 + k.share()/2))
			retry = min(2*retry, lastLeaseRetry)
		default:
			if failure != "" {
				k.log.Info("This agent's Lease is renewed again", "lease", k.namespace+"/"+v1alpha1.AgentLeaseName(k.node))
			}
			if retry != firstLeaseRetry {
				// Agents return together when the API server does.
				pause = time.Duration(float64(leasePause) * k.share())
			}
			retry, failure, next = firstLeaseRetry, "", leasePause
		}
		waited(ctx, k.clock, pause)
	}
}

// awaitApplied waits a moment for the first set: else the Lease of an agent that
// has been started again would say for half a minute that it has applied nothing,
// and the node would count as lagging.
func (k *leaseKeeper) awaitApplied(ctx context.Context) {
	for spent := time.Duration(0); spent < appliedWait && k.applied() == "" && ctx.Err() == nil; spent += appliedTick {
		waited(ctx, k.clock, appliedTick)
	}
}

// waited waits for a time, or until ctx is done. It reports whether it has waited
// for all of it.
func waited(ctx context.Context, c clock.Clock, d time.Duration) bool {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

func (k *leaseKeeper) renew(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	err := k.write(limited, lease{namespace: k.namespace, node: k.node, started: k.started, renewed: k.clock.Now(), applied: k.applied()})
	if ctx.Err() == nil {
		k.result(err == nil)
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

// appliedVersion is the newest resourceVersion of a ServiceProxyRules that the
// kernel holds; empty before the first.
func (s *store) appliedVersion() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied.version
}
