package controllers

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// finding is what a reconciler has to say in the status of NodeProxy.
type finding struct {
	reason  string // empty: all is well
	message string
}

// findings are what the reconcilers that run the agents, or give settings to nodes, have found since this
// controller leads. Only one reconciler writes the status of NodeProxy, and it
// asks here.
type findings struct {
	changed func() // called when something else is found than before

	mu    sync.Mutex // guards the following
	found map[string]finding
}

// What findings are about.
const (
	aboutDaemonSet  = "the agents' DaemonSet"
	aboutAPIServers = "the API servers"
	aboutRollout    = "the rollout of settings"
)

func newFindings(changed func()) *findings {
	return &findings{changed: changed, found: map[string]finding{}}
}

// report notes what has been found.
func (f *findings) report(about string, now finding) {
	f.mu.Lock()
	before, known := f.found[about]
	f.found[about] = now
	f.mu.Unlock()
	if !known || before != now {
		f.changed()
	}
}

// of returns what has been found. Until that is known it is what the status
// says of an earlier controller, in a condition with one of the reasons.
func (f *findings) of(about string, status *v1alpha1.NodeProxyStatus, condition string, reasons ...string) finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now, known := f.found[about]; known {
		return now
	}
	stored := meta.FindStatusCondition(status.Conditions, condition)
	for _, reason := range reasons {
		if stored != nil && stored.Reason == reason {
			return finding{reason: reason, message: stored.Message}
		}
	}
	return finding{}
}

// newTerm forgets what an earlier time as the leader has brought.
func (f *findings) newTerm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.found)
}
