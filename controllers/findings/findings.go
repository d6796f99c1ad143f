package findings

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Finding is what a reconciler reports in the status of NodeProxy.
type Finding struct {
	Reason  string // empty: all is well
	Message string
}

// Findings are the reports of the reconcilers that deploy the agents or roll out settings, in this
// term.
type Findings struct {
	changed func() // called when a finding changes

	mu    sync.Mutex // guards the following
	found map[string]Finding
}

// Subjects of findings.
const (
	AboutDaemonSet  = "the agents' DaemonSet"
	AboutAPIServers = "the API servers"
	AboutRollout    = "the rollout of settings"
)

// New returns Findings that call changed when one differs from before.
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

// Of returns a finding. Until there is one in this term, it is the stored condition, if that has one
// of the reasons.
func (f *Findings) Of(about string, status *v1alpha1.NodeProxyStatus, condition string, reasons ...string) Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now, known := f.found[about]; known {
		return now
	}
	stored := meta.FindStatusCondition(status.Conditions, condition)
	if stored != nil && slices.Contains(reasons, stored.Reason) {
		return Finding{Reason: stored.Reason, Message: stored.Message}
	}
	return Finding{}
}

// NewTerm forgets the findings of earlier terms.
func (f *Findings) NewTerm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.found)
}
