package findings

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Finding is what a reconciler reports in the status of NodeProxy.
type Finding struct {
	Reason  string // empty: all is well
	Message string
}

// Findings are the reports of the reconcilers that run the agents or roll out settings, in this
// term. Only one reconciler writes the status of NodeProxy, and it reads them here.
type Findings struct {
	changed func() // called when something else is found than before

	mu    sync.Mutex // guards the following
	found map[string]Finding
}

// What findings are about.
const (
	AboutDaemonSet  = "the agents' DaemonSet"
	AboutAPIServers = "the API servers"
	AboutRollout    = "the rollout of settings"
)

// New returns findings; it calls changed when one differs from before.
func New(changed func()) *Findings {
	return &Findings{changed: changed, found: map[string]Finding{}}
}

// Report records a finding.
func (f *Findings) Report(about string, now Finding) {
	f.mu.Lock()
	before, known := f.found[about]
	f.found[about] = now
	f.mu.Unlock()
	if !known || before != now {
		f.changed()
	}
}

// Of returns a finding. Until there is one in this term, it is what an earlier controller has
// written in a condition with one of the reasons.
func (f *Findings) Of(about string, status *v1alpha1.NodeProxyStatus, condition string, reasons ...string) Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now, known := f.found[about]; known {
		return now
	}
	stored := meta.FindStatusCondition(status.Conditions, condition)
	for _, reason := range reasons {
		if stored != nil && stored.Reason == reason {
			return Finding{Reason: reason, Message: stored.Message}
		}
	}
	return Finding{}
}

// NewTerm forgets the findings of earlier terms.
func (f *Findings) NewTerm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.found)
}
