package apiclient

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
)

// errorPause is how often a persisting error is logged again.
const errorPause = time.Minute

// Errors are the current errors of reading the API. They are logged with a remedy.
type Errors struct {
	clock   clock.Clock
	log     logr.Logger
	metrics *Metrics

	mu   sync.Mutex          // guards last
	last map[string]apiError // by resource
}

type apiError struct {
	text   string
	advice string
	at     time.Time // when it was last logged
}

// NewErrors returns a record without errors.
func NewErrors(clk clock.Clock, log logr.Logger, m *Metrics) *Errors {
	return &Errors{clock: clk, log: log, metrics: m, last: map[string]apiError{}}
}

// Watching records that a watch has started, which ends an error. A list does not, because the
// watch after it may fail.
func (e *Errors) Watching(resource string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, failing := e.last[resource]; failing {
		delete(e.last, resource)
		e.metrics.failing.WithLabelValues(resource).Set(0)
		e.log.Info("The API answers again", "resource", resource)
	}
}

// Failed records that a list or a watch has failed.
func (e *Errors) Failed(ctx context.Context, resource string, err error) {
	if ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsInvalid(err) {
		return // the agent stops, or the reflector recovers by itself
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	what := advice(err)
	now := e.clock.Now()
	last, failing := e.last[resource]
	if failing && last.advice == what && now.Sub(last.at) < errorPause {
		return
	}
	e.last[resource] = apiError{text: err.Error(), advice: what, at: now}
	e.metrics.failing.WithLabelValues(resource).Set(1)
	e.log.Error(err, "Could not read from the API; retrying, the rules in the kernel stay as they are", "resource", resource, "whatToDo", what)
}

// First returns one of the errors with its resource; empty: there is none.
func (e *Errors) First() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, resource := range slices.Sorted(maps.Keys(e.last)) {
		return resource + ": " + e.last[resource].text
	}
	return ""
}

// advice is the remedy for an error from the API.
func advice(err error) string {
	switch {
	case apierrors.IsNotFound(err):
		return "the kinds of nodeproxy.io are not installed in this cluster: apply the install.yaml of this release, or its config/crd/bases"
	case apierrors.IsUnauthorized(err):
		return "the API server does not accept the agent's credentials: check --kubeconfig; in a pod, delete the pod, so that it gets a new token"
	case apierrors.IsForbidden(err):
		return "the agent's identity has no permission to read this kind: apply the install.yaml of this release, or the agent's roles and their bindings in config/rbac"
	default:
		return "check that the API server runs and can be reached from this node by its real address (--api-server, --api-servers-file, --kubeconfig)"
	}
}
