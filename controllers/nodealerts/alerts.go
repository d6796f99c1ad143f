package nodealerts

import (
	"cmp"
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

const action = "ProgramNode"

type recorder interface {
	TransitionOfNode(rules *v1alpha1.NodeProxyRules, what events.Kind, note string)
}

// Handler returns a handler of NodeProxyRules that writes the events and enqueues nothing. A standby
// writes none.
func Handler(leadership leader.Leadership, to recorder) handler.Funcs {
	return handler.Funcs{UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ watches.Queue) {
		before, after := e.ObjectOld.(*v1alpha1.NodeProxyRules), e.ObjectNew.(*v1alpha1.NodeProxyRules)
		what, note := alert(before, after)
		if note == "" {
			return
		}
		if _, leave, leads := leadership.TryEnter(ctx); leads {
			defer leave()
			to.TransitionOfNode(after, what, note)
		}
	}}
}

// alert returns the event about a node whose condition Programmed has another reason than before.
// The note is empty if there is none.
func alert(before, after *v1alpha1.NodeProxyRules) (what events.Kind, note string) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionProgrammed)
	is := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionProgrammed)
	if is == nil || reports.Absent(after) || was != nil && was.Reason == is.Reason {
		return events.Kind{}, ""
	}
	recovered := is.Status == metav1.ConditionTrue && was != nil && alarming(was.Reason)
	switch {
	case alarming(is.Reason):
		return events.Kind{Severity: events.Warning, Reason: is.Reason, Action: action},
			fmt.Sprintf("Condition Programmed of NodeProxyRules %s is %s: %s", after.Name, is.Status, is.Message)
	case recovered:
		return events.Kind{Severity: events.Normal, Reason: is.Reason, Action: action},
			cmp.Or(is.Message, "The node's kernel has the desired rules.")
	}
	return events.Kind{}, ""
}

// alarming reports whether a reason of Programmed needs attention.
func alarming(reason string) bool {
	switch reason {
	case v1alpha1.ReasonAgentNotResponding, v1alpha1.ReasonConflictingProxy, v1alpha1.ReasonFailed, v1alpha1.ReasonSomeServicesRejected:
		return true
	}
	return false
}
