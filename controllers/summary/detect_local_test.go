package summary

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
)

func TestDetectLocalNotSet(t *testing.T) {
	node := func(detect *v1alpha1.DetectLocalSettings, endpoints ...string) v1alpha1.NodeProxyRules {
		return v1alpha1.NodeProxyRules{Spec: v1alpha1.NodeProxyRulesSpec{
			Settings:       v1alpha1.ProxySettings{DetectLocal: detect},
			Node:           v1alpha1.NodeFacts{Addresses: []string{"192.0.2.21", "2001:db8::21"}},
			LocalEndpoints: []v1alpha1.ServiceLocalEndpoints{{Namespace: "shop", Name: "cart", Ports: []v1alpha1.PortLocalEndpoints{{Endpoints: endpoints}}}},
		}}
	}
	none := &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalNone}
	nodeCIDR := &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalNodeCIDR}
	host := []string{"192.0.2.21:443", "[2001:db8::21]:443"}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAllProgrammed}
	for name, c := range map[string]struct {
		settings *v1alpha1.WrittenSettings
		nodes    []v1alpha1.NodeProxyRules
		notReady bool
		warned   bool
	}{
		"pods":                     {nodes: []v1alpha1.NodeProxyRules{node(none, host...), node(none, "192.0.2.21:443", "10.244.0.3:8080")}, warned: true},
		"pods, IPv6":               {settings: &v1alpha1.WrittenSettings{}, nodes: []v1alpha1.NodeProxyRules{node(nil, "[fd00::3]:8080")}, warned: true},
		"no pods":                  {nodes: []v1alpha1.NodeProxyRules{node(none, host...)}},
		"no nodes":                 {},
		"not ready":                {nodes: []v1alpha1.NodeProxyRules{node(none, "10.244.0.3:8080")}, notReady: true},
		"None is written":          {settings: &v1alpha1.WrittenSettings{DetectLocal: none}, nodes: []v1alpha1.NodeProxyRules{node(none, "10.244.0.3:8080")}},
		"policies set it for pods": {nodes: []v1alpha1.NodeProxyRules{node(nodeCIDR, "10.244.0.3:8080"), node(none, host...)}},
	} {
		t.Run(name, func(t *testing.T) {
			was := ready
			if c.notReady {
				was.Status = metav1.ConditionFalse
			}
			got := withDetectLocal(was, &v1alpha1.NodeProxy{Spec: v1alpha1.NodeProxySpec{Settings: c.settings}}, c.nodes)
			if warned := got.Message == detectLocalNotSet; warned != c.warned || got.Status != was.Status || got.Reason != was.Reason {
				t.Errorf("got %+v, want a warning: %t", got, c.warned)
			}
		})
	}
}

// recordedWarnings are the notes of warnings about NodeProxy.
type recordedWarnings struct {
	recorder
	notes []string
}

func (r *recordedWarnings) WarnNodeProxy(_ *v1alpha1.NodeProxy, reason, _, note string) {
	r.notes = append(r.notes, reason+": "+note)
}

func TestEventIfDetectLocalIsNotSet(t *testing.T) {
	with := func(message string) *v1alpha1.NodeProxy {
		np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: "cluster", UID: "1"}}
		reports.Set(&np.Status.Conditions, 1, controllertest.Noon, metav1.Condition{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAllProgrammed, Message: message,
		})
		return np
	}
	events := &recordedWarnings{}
	r := &Reconciler{Events: events}
	r.recordTransitions(with(""), with(""))
	r.recordTransitions(with(""), with(detectLocalNotSet))
	r.recordTransitions(with(detectLocalNotSet), with(detectLocalNotSet))
	if want := []string{"DetectLocalNotSet: " + detectLocalNotSet}; !slices.Equal(events.notes, want) {
		t.Errorf("events %q, want %q", events.notes, want)
	}
}
