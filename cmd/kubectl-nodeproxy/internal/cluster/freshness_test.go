package cluster

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

func noon() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }

// written is the annotation of an object that was written so long ago.
func written(ago time.Duration) map[string]string {
	return map[string]string{v1alpha1.AnnotationWritten: noon().Add(-ago).Format(time.RFC3339)}
}

// programmed is a node that reports, with rules of generation 9 and of an age.
func programmed(ago time.Duration) *v1alpha1.NodeProxyRules {
	n := node()
	n.Generation, n.Annotations = 9, written(ago)
	n.Status.ObservedGeneration, n.Status.AppliedResourceVersion = 9, "100"
	n.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProgrammed}}
	return n
}

// inACluster are the objects of a cluster whose newest ServiceProxyRules have an age.
func inACluster(ago time.Duration) *Objects {
	return &Objects{Time: noon(), ServiceRules: []v1alpha1.ServiceProxyRules{
		{ObjectMeta: metav1.ObjectMeta{Name: "shop.web", ResourceVersion: "101", Annotations: written(ago)}},
		{ObjectMeta: metav1.ObjectMeta{Name: "shop.old", ResourceVersion: "99", Annotations: written(24 * time.Hour)}},
	}}
}

// TestNotes: a node is behind after the time in which an agent must have reported.
func TestNotes(t *testing.T) {
	t.Parallel()
	const stale, lags, missing = "changed more than a minute ago (generation 9), but its agent still reports older ones (generation 5)",
		"a change that was rendered more than ten minutes ago is not applied on the node: ServiceProxyRules shop.web have resourceVersion 101, but its kernel has nothing newer than 100",
		"the 2 existing ServiceProxyRules are not the 3 of NodeProxy's inventory"
	for name, tt := range map[string]struct {
		rules, services time.Duration
		edit            func(n *v1alpha1.NodeProxyRules, o *Objects)
		want, not       string
	}{
		"healthy":     {not: "\n"},
		"older rules": {rules: 2 * time.Minute, edit: func(n *v1alpha1.NodeProxyRules, _ *Objects) { n.Status.ObservedGeneration = 5 }, want: stale},
		"older rules just now": {
			edit: func(n *v1alpha1.NodeProxyRules, _ *Objects) { n.Status.ObservedGeneration = 5 },
			want: "refers to generation 5 of its rules, and this is generation 9", not: "a minute ago",
		},
		"older rules, since an unknown time": {
			edit: func(n *v1alpha1.NodeProxyRules, _ *Objects) {
				n.Status.ObservedGeneration, n.Annotations = 5, nil
				n.Status.LastSync = &v1alpha1.SyncReport{Time: metav1.NewTime(noon().Add(-2 * time.Minute))}
			},
			want: stale,
		},
		"a kernel that is behind":       {services: 11 * time.Minute, want: lags},
		"a kernel that is not late yet": {services: 9 * time.Minute, not: "\n"},
		"a kernel without a report":     {services: time.Hour, edit: func(n *v1alpha1.NodeProxyRules, _ *Objects) { n.Status.AppliedResourceVersion = "" }, want: "nothing newer than none"},
		"a kernel in Audit": {services: time.Hour, edit: func(n *v1alpha1.NodeProxyRules, _ *Objects) {
			n.Spec.Settings.Enforcement = new(v1alpha1.Audit)
		}, not: "resourceVersion"},
		"a silent agent": {
			rules: time.Hour, services: time.Hour,
			edit: func(n *v1alpha1.NodeProxyRules, _ *Objects) {
				n.Status.ObservedGeneration = 5
				n.Status.Conditions[0].Status, n.Status.Conditions[0].Reason = metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding
			},
			want: "Programmed is Unknown", not: " ago",
		},
		"a kernel that is behind while other Services change": {
			services: time.Hour,
			edit: func(_ *v1alpha1.NodeProxyRules, o *Objects) {
				o.ServiceRules = append(o.ServiceRules, v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "shop.new", ResourceVersion: "102", Annotations: written(0)}})
			},
			want: lags,
		},
		"objects that are missing": {
			services: 2 * time.Minute,
			edit: func(_ *v1alpha1.NodeProxyRules, o *Objects) {
				o.NodeProxy = &v1alpha1.NodeProxy{}
				o.NodeProxy.Status.Inventory = new(render.Inventory([]string{"shop.old", "shop.web", "shop.gone"}))
			},
			want: missing,
		},
		"objects that are missing while others change": {
			edit: func(_ *v1alpha1.NodeProxyRules, o *Objects) {
				o.NodeProxy = &v1alpha1.NodeProxy{}
				o.NodeProxy.Status.Inventory = new(render.Inventory([]string{"shop.old"}))
			},
			not: "\n",
		},
		"objects that are missing during removal": {
			services: 2 * time.Minute,
			edit: func(_ *v1alpha1.NodeProxyRules, o *Objects) {
				o.NodeProxy = &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(metav1.NewTime(noon()))}}
				o.NodeProxy.Status.Inventory = new(render.Inventory([]string{"shop.old", "shop.web", "shop.gone"}))
			},
			not: "\n",
		},
		"a released object": {
			services: 2 * time.Minute,
			edit: func(_ *v1alpha1.NodeProxyRules, o *Objects) {
				o.NodeProxy = &v1alpha1.NodeProxy{}
				o.NodeProxy.Status.Inventory = new(render.Inventory([]string{"shop.web"}))
				o.ServiceRules[1].Spec.Released = true
			},
			not: "\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, o := programmed(tt.rules), inACluster(tt.services)
			if tt.edit != nil {
				tt.edit(n, o)
			}
			got := ""
			for _, text := range o.Notes(n, "") {
				got += text + "\n"
			}
			if !strings.Contains(got, tt.want) || tt.not != "" && strings.Contains(got, tt.not) {
				t.Errorf("want %q and not %q: %q", tt.want, tt.not, got)
			}
		})
	}
}
