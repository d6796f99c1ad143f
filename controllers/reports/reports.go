package reports

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// NotResponding reports whether the agent does not respond, by the status.
func NotResponding(rules *v1alpha1.NodeProxyRules) bool {
	c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
	return c != nil && c.Status == metav1.ConditionUnknown && c.Reason == v1alpha1.ReasonAgentNotResponding
}

// Absent reports whether the Node of the rules does not exist.
func Absent(rules *v1alpha1.NodeProxyRules) bool {
	return rules.Annotations[v1alpha1.AnnotationNodeAbsentSince] != ""
}

// Set sets conditions of a generation, sorted by type. It truncates their messages, and retains the
// times of their last transitions.
func Set(all *[]metav1.Condition, generation int64, now time.Time, conditions ...metav1.Condition) {
	for _, c := range conditions {
		c.ObservedGeneration, c.LastTransitionTime = generation, metav1.NewTime(now.Truncate(time.Second))
		c.Message = text.Truncate(c.Message, text.MaxStatusMessage)
		meta.SetStatusCondition(all, c)
	}
	slices.SortFunc(*all, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
}

// SetAbnormal sets the condition Stalled if Ready has one of the reasons, or else Reconciling if it is
// not True and nothing is paused. It removes what it does not set. Tools that follow kstatus
// distinguish failure from progress by these.
func SetAbnormal(all *[]metav1.Condition, ready metav1.Condition, generation int64, now time.Time, stalled ...string) {
	kind := ""
	switch {
	case slices.Contains(stalled, ready.Reason):
		kind = v1alpha1.ConditionStalled
	case ready.Status != metav1.ConditionTrue && ready.Reason != v1alpha1.ReasonPaused:
		kind = v1alpha1.ConditionReconciling
	}
	for _, abnormal := range []string{v1alpha1.ConditionStalled, v1alpha1.ConditionReconciling} {
		if abnormal != kind {
			meta.RemoveStatusCondition(all, abnormal)
		}
	}
	if kind != "" {
		ready.Type, ready.Status = kind, metav1.ConditionTrue
		Set(all, generation, now, ready)
	}
}

// Ready returns the condition Ready; without a reason if there is none.
func Ready(all []metav1.Condition) metav1.Condition {
	return ptr.Deref(meta.FindStatusCondition(all, v1alpha1.ConditionReady), metav1.Condition{})
}

// True returns a condition that is True.
func True(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

// False returns a condition that is False.
func False(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

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

// NewFindings returns Findings that call changed when one differs from before.
func NewFindings(changed func()) *Findings {
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
