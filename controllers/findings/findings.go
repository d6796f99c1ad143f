package findings

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Finding is what a reconciler has to say in the status of NodeProxy.
type Finding struct {
	Reason  string // empty: all is well
	Message string
}

// Findings are what the reconcilers that run the agents, or give settings to nodes, have found since this
// controller leads. Only one reconciler writes the status of NodeProxy, and it
// asks here.
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

func New(changed func()) *Findings {
	return &Findings{changed: changed, found: map[string]Finding{}}
}

// Report notes what has been found.
func (f *Findings) Report(about string, now Finding) {
	f.mu.Lock()
	before, known := f.found[about]
	f.found[about] = now
	f.mu.Unlock()
	if !known || before != now {
		f.changed()
	}
}

// Of returns what has been found. Until that is known it is what the status
// says of an earlier controller, in a condition with one of the reasons.
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

// NewTerm forgets what an earlier time as the leader has brought.
func (f *Findings) NewTerm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.found)
}
