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

func (r *recorded) ModeOfNode(rules *v1alpha1.NodeProxyRules, what events.Kind, note string) {
	r.TransitionOfNode(rules, what, note)
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
	pending.Status.Agent = &v1alpha1.AgentReport{StartTime: metav1.Unix(1_700_000_000, 0)}
	waiting := reporting(metav1.ConditionFalse, v1alpha1.ReasonPending, "Changes have been pending")
	resettled := waiting.DeepCopy()
	resettled.Status.SettingsRevision = "other"
	audited := reporting(metav1.ConditionTrue, v1alpha1.ReasonAuditInSync, "")
	differs := reporting(metav1.ConditionFalse, v1alpha1.ReasonAuditDiffers, "3 differences")
	inMode := func(mode v1alpha1.ProxyMode) *v1alpha1.NodeProxyRules {
		rules := reporting(metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
		rules.Status.Mode = mode
		return rules
	}
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
		"a change waits":               {programmed, waiting, prefix + "Warning Pending: " + condition + "False: Changes have been pending"},
		"other settings":               {programmed, resettled, ""},
		"Audit finds differences":      {audited, differs, prefix + "Normal AuditDiffers: " + condition + "False: 3 differences"},
		"Audit begins":                 {pending, differs, ""},
		"another mode":                 {inMode(v1alpha1.ModeIPTables), inMode(v1alpha1.ModeNFTables), "work-7 ChangeMode Normal ModeChanged: The node's proxy runs in mode NFTables, before in mode IPTables."},
		"the first mode":               {none, inMode(v1alpha1.ModeNFTables), ""},
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

// TestRecoveryBySteps: a recovery is an event even if the node reports something else in between, and
// another controller leads by then.
func TestRecoveryBySteps(t *testing.T) {
	programmed := reporting(metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
	other := reporting(metav1.ConditionFalse, v1alpha1.ReasonConflictingProxy, "kube-proxy")
	pending := reporting(metav1.ConditionFalse, v1alpha1.ReasonPending, "")
	var got recorded
	leadership := &leads{}
	h := Handler(leadership, &got)
	for _, step := range []*v1alpha1.NodeProxyRules{programmed, other, pending, programmed, pending, other, pending, programmed} {
		before := pending
		if len(leadership.steps) > 0 {
			before = leadership.steps[len(leadership.steps)-1]
		}
		leadership.steps = append(leadership.steps, step)
		h.UpdateFunc(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: step}, nil)
	}
	const want = "work-7 ProgramNode Normal Programmed: The node's kernel has the desired rules." +
		"work-7 ProgramNode Warning Pending: Condition Programmed of NodeProxyRules work-7 is False: " +
		"work-7 ProgramNode Warning ConflictingProxy: Condition Programmed of NodeProxyRules work-7 is False: kube-proxy" +
		"work-7 ProgramNode Normal Programmed: The node's kernel has the desired rules."
	if string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// leads leads from the third step on.
type leads struct {
	leader.Always
	steps []*v1alpha1.NodeProxyRules
}

func (l *leads) TryEnter(ctx context.Context) (context.Context, func(), bool) {
	return ctx, func() {}, len(l.steps) > 2
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
