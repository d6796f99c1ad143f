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

const (
	action          = "ProgramNode"
	actionMode      = "ChangeMode"
	eventModeChange = "ModeChanged"
)

type recorder interface {
	TransitionOfNode(rules *v1alpha1.NodeProxyRules, what events.Kind, note string)
	ModeOfNode(rules *v1alpha1.NodeProxyRules, what events.Kind, note string)
}

// Handler returns a handler of NodeProxyRules that writes the events and enqueues nothing. A standby
// writes none, but remembers failures, because it may lead when they end.
func Handler(leadership leader.Leadership, to recorder) handler.Funcs {
	failed := map[string]bool{} // nodes without an event about a recovery since; only the informer calls the handler
	write := func(ctx context.Context, f func()) {
		if _, leave, leads := leadership.TryEnter(ctx); leads {
			defer leave()
			f()
		}
	}
	return handler.Funcs{
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, _ watches.Queue) {
			before, after := e.ObjectOld.(*v1alpha1.NodeProxyRules), e.ObjectNew.(*v1alpha1.NodeProxyRules)
			if reports.Absent(after) {
				delete(failed, after.Name)
				return
			}
			if was, is := before.Status.Mode, after.Status.Mode; was != "" && is != "" && was != is {
				write(ctx, func() {
					to.ModeOfNode(after, events.Kind{Severity: events.Normal, Reason: eventModeChange, Action: actionMode},
						fmt.Sprintf("The node's proxy runs in mode %s, before in mode %s.", is, was))
				})
			}
			what, note := alert(before, after, failed[after.Name])
			if note == "" {
				return
			}
			if meta.IsStatusConditionTrue(after.Status.Conditions, v1alpha1.ConditionProgrammed) && !alarming(what.Reason) {
				delete(failed, after.Name)
			} else {
				failed[after.Name] = true
			}
			write(ctx, func() { to.TransitionOfNode(after, what, note) })
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, _ watches.Queue) { delete(failed, e.Object.GetName()) },
	}
}

// alert returns the event about a node whose condition Programmed has another reason than before.
// The note is empty if there is none. failed: there was one about a failure, and none about its end.
func alert(before, after *v1alpha1.NodeProxyRules, failed bool) (what events.Kind, note string) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionProgrammed)
	is := meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionProgrammed)
	if is == nil || was != nil && was.Reason == is.Reason {
		return events.Kind{}, ""
	}
	worked := was != nil && was.Status == metav1.ConditionTrue
	failure := fmt.Sprintf("Condition Programmed of NodeProxyRules %s is %s: %s", after.Name, is.Status, is.Message)
	switch {
	case alarming(is.Reason), worked && is.Reason == v1alpha1.ReasonPending && !begins(before, after):
		return events.Kind{Severity: events.Warning, Reason: is.Reason, Action: action}, failure
	case worked && (is.Reason == v1alpha1.ReasonAuditDiffers || is.Reason == v1alpha1.ReasonRemoved): // as requested
		return events.Kind{Severity: events.Normal, Reason: is.Reason, Action: action}, failure
	case is.Status == metav1.ConditionTrue && (failed || was != nil && alarming(was.Reason)):
		return events.Kind{Severity: events.Normal, Reason: is.Reason, Action: action},
			cmp.Or(is.Message, "The node's kernel has the desired rules.")
	}
	return events.Kind{}, ""
}

// begins reports whether the agent has just started or been given other settings, so that it is not a
// failure that its first write is pending.
func begins(before, after *v1alpha1.NodeProxyRules) bool {
	was, is := cmp.Or(before.Status.Agent, &v1alpha1.AgentReport{}), cmp.Or(after.Status.Agent, &v1alpha1.AgentReport{})
	return !was.StartTime.Equal(&is.StartTime) || before.Status.SettingsRevision != after.Status.SettingsRevision
}

// alarming reports whether a reason of Programmed needs attention.
func alarming(reason string) bool {
	switch reason {
	case v1alpha1.ReasonAgentNotResponding, v1alpha1.ReasonConflictingProxy, v1alpha1.ReasonFailed, v1alpha1.ReasonSomeServicesRejected:
		return true
	}
	return false
}
