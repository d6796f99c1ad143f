package liveness

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=list;delete,namespace=nodeproxy-system
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
// +kubebuilder:rbac:groups=nodeproxy.io,resources=nodeproxyrules/status,verbs=update

const (
	// checkTimeout limits how long the API server takes to list the Leases.
	checkTimeout = 10 * time.Second
	// standbyChecks is how often a standby checks, as a multiple of the interval, because each check
	// reads all Leases. It must be less than missedChecks.
	standbyChecks = 2
	// reportsPerSecond limits the reports of agents that do not respond: thousands of them, as after an
	// outage of a zone, must not delay other writes.
	reportsPerSecond = 50
)

// Watcher checks the agents' Leases, and reports agents without heartbeat in the status of their
// NodeProxyRules. It lists the Leases each time: with a broken watch, every agent would look dead. A
// standby checks them too, to know them when it becomes the leader.
type Watcher struct {
	Leadership leader.Leadership
	Client     client.Client // reads come from the cache
	Live       client.Reader
	Clock      clock.WithTicker
	Metrics    *metrics.Metrics
	Liveness   *Liveness
	Changed    func() // called when the set of lagging nodes changes
	failure    string // of the last check
	left       int    // how many checks a standby still skips
	pace       flowcontrol.RateLimiter
}

// Start implements manager.Runnable.
func (w *Watcher) Start(ctx context.Context) error {
	w.pace = flowcontrol.NewTokenBucketRateLimiter(reportsPerSecond, reportsPerSecond)
	ticker := w.Clock.NewTicker(w.Liveness.interval)
	defer ticker.Stop()
	for {
		_, leave, leads := w.Leadership.TryEnter(ctx)
		if leads {
			leave()
		}
		if w.due(leads) {
			w.check(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// due reports whether to check the Leases this time.
func (w *Watcher) due(leads bool) bool {
	if !leads && w.left > 0 {
		w.left--
		return false
	}
	w.left = standbyChecks - 1
	return true
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*Watcher) NeedLeaderElection() bool { return false }

func (w *Watcher) check(ctx context.Context) {
	err := w.tryCheck(ctx)
	if ctx.Err() != nil {
		return
	}
	w.Metrics.Checked(err)
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	if failure != "" && failure != w.failure {
		ctrl.Log.Error(err, "Could not check the agents' Leases; retrying", "effect", "no agent is reported as not responding", "every", w.Liveness.interval.String())
	}
	w.failure = failure
}

func (w *Watcher) tryCheck(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	var leases coordinationv1.LeaseList
	if err := w.Live.List(limited, &leases, client.InNamespace(w.Liveness.namespace)); err != nil {
		return fmt.Errorf("list the Leases of the agents: %w", err)
	}
	var rules v1alpha1.NodeProxyRulesList
	if err := w.Client.List(ctx, &rules); err != nil {
		return fmt.Errorf("list NodeProxyRules: %w", err)
	}
	newest, err := w.newestRules(ctx)
	if err != nil {
		return err
	}
	silent, orphans, changed := w.Liveness.check(w.Clock.Now(), leases.Items, rules.Items, newest)
	if changed {
		w.Changed()
	}
	term, leave, ok := w.Leadership.TryEnter(ctx)
	if !ok {
		return nil
	}
	defer leave()
	// The others are silent at the next check, too.
	silent = silent[:min(len(silent), max(1, int(w.Liveness.interval/time.Second))*reportsPerSecond)]
	err = objects.InParallel(term, len(silent)+len(orphans), func(i int) error {
		if i < len(silent) {
			return w.report(term, silent[i])
		}
		return w.removeLease(term, orphans[i-len(silent)])
	})
	if term.Err() != nil {
		return nil // this process no longer leads
	}
	return err
}

// newestRules returns the newest resourceVersion of all ServiceProxyRules.
func (w *Watcher) newestRules(ctx context.Context) (string, error) {
	var services v1alpha1.ServiceProxyRulesList
	if err := w.Client.List(ctx, &services); err != nil {
		return "", fmt.Errorf("list ServiceProxyRules: %w", err)
	}
	newest := ""
	for i := range services.Items {
		if objects.Older(newest, services.Items[i].ResourceVersion) {
			newest = services.Items[i].ResourceVersion
		}
	}
	return newest, nil
}

// report writes that an agent does not respond. The resourceVersion prevents it from overwriting a
// newer report of the agent.
func (w *Watcher) report(ctx context.Context, rules *v1alpha1.NodeProxyRules) error {
	if err := w.pace.Wait(ctx); err != nil {
		return err // this process no longer leads
	}
	next := rules.DeepCopy()
	condition := w.Liveness.silentCondition(rules)
	condition.LastTransitionTime = metav1.NewTime(w.Clock.Now().Truncate(time.Second))
	meta.SetStatusCondition(&next.Status.Conditions, condition)
	err := w.Client.Status().Update(ctx, next)
	switch {
	case err == nil:
		w.Liveness.reported(rules.Name)
		w.Metrics.Wrote(metrics.KindNodeStatus, metrics.OpUpdate)
		ctrl.Log.Info("An agent does not respond", "node", rules.Name, "why", condition.Message)
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // the next check reads the current objects
	default:
		return fmt.Errorf("report in the status of NodeProxyRules %s that its agent does not respond: %w", rules.Name, err)
	}
}

// removeLease deletes the Lease of a silent agent whose Node is deleted, once the API server has
// confirmed that. It only asks if the cache lacks the Node: Leases of Nodes that nodeproxy no longer
// serves remain, and would cost a request at every check.
func (w *Watcher) removeLease(ctx context.Context, lease *coordinationv1.Lease) error {
	if lease.Spec.HolderIdentity == nil || v1alpha1.AgentLeaseName(*lease.Spec.HolderIdentity) != lease.Name {
		return nil // no agent has written it
	}
	node := client.ObjectKey{Name: *lease.Spec.HolderIdentity}
	exists, err := objects.Get(ctx, w.Client, node, &corev1.Node{})
	if err == nil && !exists {
		exists, err = objects.Get(ctx, w.Live, node, &corev1.Node{})
	}
	if err != nil {
		return fmt.Errorf("confirm that the Node of a Lease is gone: %w", err)
	}
	if exists {
		return nil // nodeproxy may be switched off temporarily
	}
	err = w.Client.Delete(ctx, lease, client.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the Lease %s of a Node that is gone: %w", lease.Name, err)
	}
	return nil
}
