package events

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// The name of a policy may be as long as that of an event, which is longer by a hash.
func TestEventsOfObjectsWithLongNames(t *testing.T) {
	tests := []struct {
		name, object, begins string
	}{
		{"short", "edge-ipvs", "edge-ipvs."},
		{"longest that is not cut", strings.Repeat("a", 236), strings.Repeat("a", 236) + "."},
		{"cut", strings.Repeat("a", 237), strings.Repeat("a", 236) + "."},
		{"longest", strings.Repeat("a", 253), strings.Repeat("a", 236) + "."},
		{"cut after a dot", strings.Repeat("a", 235) + "." + strings.Repeat("b", 17), strings.Repeat("a", 235) + "."},
		{"cut within dashes", strings.Repeat("a", 230) + "----------" + strings.Repeat("b", 13), strings.Repeat("a", 230) + "."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newRig(t)
			for _, uid := range []types.UID{"1", "2"} {
				p := &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: tt.object, UID: uid}}
				e.TransitionOfPolicy(p, "NodeProxyPolicy", Kind{Normal, v1alpha1.ReasonApplied, "RollOut"}, "done")
			}
			e.pass(0)
			for _, event := range e.store.events {
				if wrong := validation.IsDNS1123Subdomain(event.Name); len(wrong) > 0 {
					t.Errorf("%s: %v", event.Name, wrong)
				}
				if hash, found := strings.CutPrefix(event.Name, tt.begins); !found || len(hash) != 16 {
					t.Errorf("%s does not begin with %s, followed by a hash", event.Name, tt.begins)
				}
				if event.Regarding.Name != tt.object {
					t.Errorf("it is about %s, want %s", event.Regarding.Name, tt.object)
				}
			}
			if len(e.store.events) != 2 || e.store.events[0].Name == e.store.events[1].Name {
				t.Errorf("%d events, with the same name", len(e.store.events))
			}
		})
	}
}

// changed reports that the state of a node's proxy has changed.
func (r *rig) changed(node, version, severity, reason, note string) {
	rules := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: node, ResourceVersion: version}}
	r.TransitionOfNode(rules, Kind{severity, reason, "ProgramNode"}, note)
}

// kubectl describe node selects events by the UID that the kubelet writes, which is the name.
func TestEventsAboutNodes(t *testing.T) {
	r := newRig(t)
	r.changed("work-7", "1", Warning, v1alpha1.ReasonFailed, "down")
	r.pass(0)
	r.expect("down")
	for _, e := range r.store.events {
		if about := e.Regarding; e.Namespace != metav1.NamespaceDefault || about.Namespace != "" ||
			about.Kind != "Node" || about.Name != "work-7" || about.UID != "work-7" {
			t.Errorf("an event in namespace %s about %+v", e.Namespace, about)
		}
	}
}

// TestNodeThatFlapsHasFewEvents: one of each reason in ten minutes, and none that no longer applies.
func TestNodeThatFlapsHasFewEvents(t *testing.T) {
	r := newRig(t)
	for i := range 20 {
		r.changed("work-7", fmt.Sprint(2*i), Warning, v1alpha1.ReasonAgentNotResponding, fmt.Sprint(i))
		r.pass(time.Second)
		r.changed("work-7", fmt.Sprint(2*i+1), Normal, v1alpha1.ReasonProgrammed, "up")
		r.pass(time.Second)
	}
	if n := len(r.store.events); n != 2 {
		t.Errorf("%d events at once, want 2", n)
	}
	r.pass(eventInterval)
	if last := r.store.events[len(r.store.events)-1]; len(r.store.events) > 3 || last.Reason != v1alpha1.ReasonProgrammed {
		t.Errorf("%d events, the last of %s", len(r.store.events), last.Reason)
	}
}

// TestModeOfNodeReplacesNothing: an event about the proxy's state that waits stays, and the mode has
// one event in ten minutes, with the latest.
func TestModeOfNodeReplacesNothing(t *testing.T) {
	r := newRig(t)
	r.changed("work-7", "1", Warning, v1alpha1.ReasonFailed, "down")
	r.pass(time.Second)
	r.changed("work-7", "2", Warning, v1alpha1.ReasonFailed, "down again")
	for i := range 10 {
		rules := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "work-7", ResourceVersion: fmt.Sprint(i)}}
		r.ModeOfNode(rules, Kind{Normal, "ModeChanged", "ChangeMode"}, fmt.Sprint("mode ", i))
		r.pass(time.Second)
	}
	if n := len(r.store.events); n != 2 {
		t.Errorf("%d events at once, want 2", n)
	}
	r.pass(eventInterval)
	var notes []string
	for _, e := range r.store.events {
		notes = append(notes, e.Note)
	}
	slices.Sort(notes)
	if len(notes) != 4 || notes[0] != "down" || !strings.HasPrefix(notes[1], "down again") || notes[2] != "mode 0" || !strings.HasPrefix(notes[3], "mode 9") {
		t.Errorf("events %q", notes)
	}
}

// TestOutageKeepsOutNoOtherEvents: nodes have a budget of their own.
func TestOutageKeepsOutNoOtherEvents(t *testing.T) {
	r := newRig(t)
	for i := range maxNamespaceSeries + 1 {
		r.changed(fmt.Sprintf("work-%d", i), "1", Warning, v1alpha1.ReasonFailed, "down")
	}
	r.WarnNodeProxy(&v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}, "Any", "Any", "about NodeProxy")
	for range maxNamespaceSeries/eventBatch + 2 {
		r.pass(time.Second)
	}
	if n := len(r.store.events); n != maxNamespaceSeries+1 || r.store.events[0].Note != "about NodeProxy" {
		t.Errorf("%d events, the first %q", n, r.store.events[0].Note)
	}
}
