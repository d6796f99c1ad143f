package rollouts

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/nodesettings"
)

// aFleet is a cluster in memory, for decisions about rollouts.
type aFleet struct {
	nodeProxy *v1alpha1.NodeProxy
	policies  []v1alpha1.NodeProxyPolicy
	nodes     []corev1.Node
	rules     []v1alpha1.NodeProxyRules
	revisions revisions
}

func newFleet(nodeProxy string, t testing.TB) *aFleet {
	t.Helper()
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName, Generation: 1}}
	if err := yaml.UnmarshalStrict([]byte(nodeProxy), &np.Spec); err != nil {
		t.Fatal(err)
	}
	return &aFleet{nodeProxy: np, revisions: revisions{}}
}

// policy adds a policy, in its first generation.
func (f *aFleet) policy(t testing.TB, name, spec string) *v1alpha1.NodeProxyPolicy {
	t.Helper()
	p := v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	f.policies = append(f.policies, p)
	return &f.policies[len(f.policies)-1]
}

// node adds a node of a pool whose agent has applied the settings that it was given an hour
// ago, which are as if all policies there are so far were applied.
func (f *aFleet) node(t testing.TB, name, pool string) *v1alpha1.NodeProxyRules {
	t.Helper()
	f.nodes = append(f.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool}}})
	set := nodesettings.NewPolicySet(f.nodeProxy, f.policies)
	r := set.Nodes.Resolve(map[string]string{"pool": pool})
	if r.Invalid != nil {
		t.Fatal(r.Invalid)
	}
	rules, err := nodesettings.WithSettings(&v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1}},
		r, nodesettings.NewGrant(r, nil, controllertest.Noon.Add(-time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	rules.Status.Agent, rules.Status.SettingsRevision = &v1alpha1.AgentReport{}, rules.Spec.SettingsRevision
	reported(rules, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "The desired state is programmed.")
	f.rules = append(f.rules, *rules)
	return &f.rules[len(f.rules)-1]
}

// nodes adds several.
func (f *aFleet) pool(t testing.TB, pool string, count int) {
	t.Helper()
	for i := range count {
		f.node(t, fmt.Sprintf("%s-%02d", pool, i+1), pool)
	}
}

func reported(rules *v1alpha1.NodeProxyRules, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&rules.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionProgrammed, Status: status, Reason: reason, Message: message,
	})
}

// pass makes a pass over the cluster at noon.
func (f *aFleet) pass() *pass {
	set := nodesettings.NewPolicySet(f.nodeProxy, f.policies)
	reader := &fleet{set: set, now: controllertest.Noon, on: f.nodeProxy != nil, revisions: f.revisions}
	p := newPass(set, f.nodeProxy, reader.nodes(f.nodes, f.rules))
	p.decide(controllertest.Noon)
	return p
}

// giveTo gives a node the settings that its policies result in, since some time before noon.
func (f *aFleet) giveTo(t testing.TB, name string, ago time.Duration, by ...v1alpha1.Cause) *v1alpha1.NodeProxyRules {
	t.Helper()
	for i := range f.rules {
		if f.rules[i].Name != name {
			continue
		}
		m := f.pass().find(name)
		g := nodesettings.NewGrant(m.resolution, nil, controllertest.Noon.Add(-ago))
		g.By = by
		next, err := nodesettings.WithSettings(&f.rules[i], m.resolution, g)
		if err != nil {
			t.Fatal(err)
		}
		next.Generation++
		f.rules[i] = *next
		return &f.rules[i]
	}
	t.Fatal("there is no node", name)
	return nil
}

func (f *aFleet) statusOf(name string) *v1alpha1.NodeProxyPolicyStatus {
	p := f.pass()
	return p.status(p.set.Find(name), controllertest.Noon)
}
