package simulated

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// story is a history that a test makes up. A second passes with each write.
type story struct {
	version uint64
	start   time.Time
	moments []moment
	rules   map[string]*v1alpha1.NodeProxyRules
	byHand  map[uint64]bool
}

// newStory begins with a NodeProxy that allows one node, a policy edge that allows two
// with a deadline of a minute, and so many nodes that do what they carry.
func newStory(nodes int) *story {
	s := &story{start: time.Date(2030, 1, 4, 16, 0, 0, 0, time.UTC), rules: map[string]*v1alpha1.NodeProxyRules{}, byHand: map[uint64]bool{}}
	s.write(&v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: "cluster", Generation: 1}})
	s.policy("edge", 1, v1alpha1.RolloutSettings{MaxUnavailable: new(intstr.FromInt32(2)), ProgressDeadlineSeconds: new(int32(60))})
	for i := range nodes {
		s.write(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}})
		s.give(nodeName(i), "old", "", 1)
		s.echo(nodeName(i))
	}
	return s
}

func (s *story) now() time.Time { return s.start.Add(time.Duration(s.version) * time.Second) }

func (s *story) write(object client.Object) {
	s.add(object, false)
}

func (s *story) gone(object client.Object) {
	s.add(object, true)
}

func (s *story) add(object client.Object, gone bool) {
	s.version++
	object.SetResourceVersion(strconv.FormatUint(s.version, 10))
	s.moments = append(s.moments, moment{version: s.version, at: s.now(), object: object.DeepCopyObject().(client.Object), gone: gone})
}

func (s *story) policy(name string, generation int64, rollout v1alpha1.RolloutSettings) {
	s.write(&v1alpha1.NodeProxyPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: generation},
		Spec:       v1alpha1.NodeProxyPolicySpec{Rollout: &rollout},
	})
}

// change writes rules that are as they were but for something.
func (s *story) change(node string, what func(*v1alpha1.NodeProxyRules)) {
	rules := s.rules[node]
	if rules == nil {
		rules = &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: map[string]string{}}}
		s.rules[node] = rules
	}
	what(rules)
	s.write(rules)
}

// give gives a node a change by a cause; none if its generation is 0.
func (s *story) give(node, revision, cause string, generation int64) {
	s.change(node, func(r *v1alpha1.NodeProxyRules) {
		g := v1alpha1.SettingsGrant{Time: metav1.NewTime(s.now()), Revision: revision}
		if generation > 0 {
			g.By = []v1alpha1.Cause{{Name: cause, Generation: generation}}
		}
		text, err := json.Marshal(g)
		if err != nil {
			panic(err)
		}
		r.Annotations[v1alpha1.AnnotationRollout], r.Spec.SettingsRevision = string(text), revision
	})
}

// echo has a node report that it does what it carries.
func (s *story) echo(node string) { s.report(node, metav1.ConditionTrue, v1alpha1.ReasonProgrammed) }

// report has a node report that what it carries is applied, and Programmed.
func (s *story) report(node string, status metav1.ConditionStatus, reason string) {
	s.change(node, func(r *v1alpha1.NodeProxyRules) {
		r.Status.SettingsRevision, r.Status.Agent = r.Spec.SettingsRevision, &v1alpha1.AgentReport{Version: "v0.1.0"}
		r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: status, Reason: reason}}
	})
}

func (s *story) wait(d time.Duration) { s.version += uint64(d / time.Second) }

// TestCheckerSees makes up histories in which a promise is broken, and such as look
// like it.
func TestCheckerSees(t *testing.T) {
	t.Parallel()
	give := func(s *story, nodes ...int) {
		for _, i := range nodes {
			s.give(nodeName(i), "new", "edge", 1)
		}
	}
	tests := []struct {
		name   string
		report func(s *story)
		want   string // of what is broken; "": nothing is
	}{
		{"as many as may be", func(s *story) { give(s, 0, 1); s.echo("node-00"); give(s, 2) }, ""},
		{"one too many", func(s *story) { give(s, 0, 1, 2) }, "3 nodes are unavailable for changes"},
		{"applied, but not programmed", func(s *story) {
			give(s, 0, 1)
			s.report("node-00", metav1.ConditionFalse, v1alpha1.ReasonFailed)
			give(s, 2)
		}, "3 nodes are unavailable for changes"},
		{"some Services rejected", func(s *story) {
			give(s, 0, 1)
			s.report("node-00", metav1.ConditionTrue, v1alpha1.ReasonSomeServicesRejected)
			give(s, 2)
		}, ""},
		{"compared", func(s *story) {
			give(s, 0, 1)
			s.report("node-00", metav1.ConditionFalse, v1alpha1.ReasonAuditDiffers)
			give(s, 2)
		}, ""},
		{"two policies, one node too many", func(s *story) {
			s.policy("more", 1, v1alpha1.RolloutSettings{MaxUnavailable: new(intstr.FromInt32(2))})
			s.give("node-00", "new", "more", 1)
			give(s, 1)
			s.policy("more", 2, v1alpha1.RolloutSettings{})
			s.give("node-02", "new", "more", 1)
		}, "3 nodes are unavailable for changes"},
		{"a removed policy, at the pace of NodeProxy", func(s *story) {
			s.give("node-00", "new", "", 1)
			s.give("node-01", "new", "", 1)
		}, `by "" of generation 1, 2 nodes are unavailable`},
		{"a percentage", func(s *story) {
			s.policy("edge", 2, v1alpha1.RolloutSettings{MaxUnavailable: new(intstr.FromString("25%"))})
			s.give("node-00", "new", "edge", 2)
			s.give("node-01", "new", "edge", 2)
		}, "of 6 selected at most 1 may be"},
		{"unavailable ones besides", func(s *story) {
			for i := range 4 {
				s.report(nodeName(i), metav1.ConditionFalse, v1alpha1.ReasonFailed)
			}
			give(s, 0, 1)
		}, ""},
		{"too many of the unavailable ones", func(s *story) {
			for i := range 4 {
				s.report(nodeName(i), metav1.ConditionFalse, v1alpha1.ReasonFailed)
			}
			give(s, 0, 1, 2)
		}, "3 nodes have not applied it"},
		{"where nothing is at risk", func(s *story) {
			s.gone(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-05"}})
			give(s, 0, 1, 5)
		}, ""},
		{"paused", func(s *story) {
			s.policy("edge", 2, v1alpha1.RolloutSettings{Paused: new(true)})
			s.give("node-00", "new", "edge", 2)
		}, "which is paused"},
		{"paused just now", func(s *story) {
			s.policy("edge", 2, v1alpha1.RolloutSettings{Paused: new(true)})
			give(s, 0)
		}, ""},
		{"a deadline missed", func(s *story) { give(s, 0); s.wait(time.Minute); give(s, 1) }, "though node-00 has been without it since"},
		{"a deadline missed before a new generation", func(s *story) {
			give(s, 0)
			s.wait(time.Minute)
			s.policy("edge", 2, v1alpha1.RolloutSettings{MaxUnavailable: new(intstr.FromInt32(2))})
			s.give("node-01", "newer", "edge", 2)
		}, ""},
		{"without a cause", func(s *story) { s.give("node-00", "new", "", 0) }, "without a change"},
		{"by a generation that is not", func(s *story) { s.give("node-00", "new", "edge", 7) }, "which there never was"},
		{"without a grant", func(s *story) {
			s.change("node-00", func(r *v1alpha1.NodeProxyRules) { r.Spec.SettingsRevision = "new" })
		}, `was given settings new by the grant`},
		{"by hand, and put back", func(s *story) {
			s.change("node-00", func(r *v1alpha1.NodeProxyRules) { r.Spec.SettingsRevision = "theirs" })
			s.byHand[s.version] = true
			s.change("node-00", func(r *v1alpha1.NodeProxyRules) { r.Spec.SettingsRevision = "old" })
		}, ""},
		{"the same again", func(s *story) { give(s, 0); s.echo("node-00"); s.give("node-00", "new", "edge", 1) }, "a new grant"},
		{"another chance to apply the same", func(s *story) {
			give(s, 0)
			s.policy("edge", 2, v1alpha1.RolloutSettings{})
			s.give("node-00", "new", "edge", 2)
		}, ""},
		{"a spec that people wrote", func(s *story) {
			s.write(&v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{
				Name: "edge", Generation: 2, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: theController}},
			}})
		}, "the controller has written"},
		{"counts that cannot be", func(s *story) {
			s.write(&v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "edge", Generation: 1}, Status: v1alpha1.NodeProxyPolicyStatus{Nodes: 3, Updated: 2, Programmed: 3}})
		}, "status counts 3 nodes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStory(6)
			tt.report(s)
			broken := strings.Join(check(s.moments, s.byHand).broken, "\n")
			if tt.want == "" && broken != "" || !strings.Contains(broken, tt.want) {
				t.Errorf("broken: %q, want %q", broken, tt.want)
			}
		})
	}
}
