package nodealerts

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
)

// recorded is a recorder that describes the events.
type recorded string

func (r *recorded) TransitionOfNode(rules *v1alpha1.NodeProxyRules, what events.Kind, note string) {
	*r += recorded(rules.Name + " " + what.Action + " " + what.Severity + " " + what.Reason + ": " + note)
}

// reporting returns the rules of a node whose condition Programmed has a reason; empty: there is no
// report yet.
func reporting(status metav1.ConditionStatus, reason, message string) *v1alpha1.NodeProxyRules {
	rules := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "work-7"}}
	if reason != "" {
		rules.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: status, Reason: reason, Message: message}}
	}
	return rules
}

func TestAlerts(t *testing.T) {
	programmed := reporting(metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
	silent := reporting(metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, "the agent is silent")
	rejects := reporting(metav1.ConditionTrue, v1alpha1.ReasonSomeServicesRejected, "shop/cart")
	other := reporting(metav1.ConditionFalse, v1alpha1.ReasonConflictingProxy, "kube-proxy")
	pending := reporting(metav1.ConditionFalse, v1alpha1.ReasonPending, "")
	none := reporting("", "", "")
	gone := silent.DeepCopy()
	gone.Annotations = map[string]string{v1alpha1.AnnotationNodeAbsentSince: "2026-11-20T08:00:00Z"}
	const prefix, condition = "work-7 ProgramNode ", "Condition Programmed of NodeProxyRules work-7 is "
	for name, c := range map[string]struct {
		before, after *v1alpha1.NodeProxyRules
		want          string
	}{
		"the agent falls silent":       {programmed, silent, prefix + "Warning AgentNotResponding: " + condition + "Unknown: the agent is silent"},
		"another proxy starts":         {programmed, other, prefix + "Warning ConflictingProxy: " + condition + "False: kube-proxy"},
		"the kernel rejects a Service": {none, rejects, prefix + "Warning SomeServicesRejected: " + condition + "True: shop/cart"},
		"it recovers":                  {silent, programmed, prefix + "Normal Programmed: The node's kernel has the desired rules."},
		"it is silent, then fails":     {silent, other, prefix + "Warning ConflictingProxy: " + condition + "False: kube-proxy"},
		"nothing new":                  {silent, silent, ""},
		"the first report":             {none, programmed, ""},
		"it starts":                    {programmed, pending, ""},
		"it has started":               {pending, programmed, ""},
		"the Node is gone":             {programmed, gone, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := handled(t, leader.Always{}, c.before, c.after); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if got := handled(t, standby{}, programmed, silent); got != "" {
		t.Errorf("a standby writes %q", got)
	}
}

// handled returns the events about a change.
func handled(t *testing.T, l leader.Leadership, before, after *v1alpha1.NodeProxyRules) string {
	t.Helper()
	var got recorded
	Handler(l, &got).UpdateFunc(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, nil)
	return string(got)
}

// standby never leads.
type standby struct{ leader.Always }

func (standby) TryEnter(context.Context) (context.Context, func(), bool) { return nil, nil, false }
