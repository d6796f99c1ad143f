package liveness

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// aCluster is what is checked every five seconds.
type aCluster struct {
	*testing.T
	Liveness *Liveness
	now      time.Time
	leases   map[string]*coordinationv1.Lease
	rules    map[string]*v1alpha1.NodeProxyRules
	newest   string
	orphans  []string
}

func newCluster(t *testing.T, nodes ...string) *aCluster {
	c := &aCluster{
		T: t, Liveness: New(5*time.Second, "ns"), now: time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC),
		leases: map[string]*coordinationv1.Lease{}, rules: map[string]*v1alpha1.NodeProxyRules{}, newest: "100",
	}
	for _, n := range nodes {
		c.rules[n] = &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: n, Generation: 3}}
		c.renew(n, "100")
		c.programmed(n)
	}
	return c
}

// renew lets an agent renew its Lease, by a clock that is a year ahead.
func (c *aCluster) renew(node, applied string) {
	c.leases[node] = &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "agent." + node, Annotations: map[string]string{v1alpha1.AnnotationAppliedResourceVersion: applied}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, RenewTime: &metav1.MicroTime{Time: c.now.AddDate(1, 0, 0)}},
	}
}

func (c *aCluster) programmed(node string) {
	c.rules[node].Status.Agent = &v1alpha1.AgentReport{}
	meta.SetStatusCondition(&c.rules[node].Status.Conditions, metav1.Condition{Type: "Programmed", Status: "True", Reason: "Programmed"})
}

// check returns the nodes that are to be reported, and reports them.
func (c *aCluster) check() []string {
	var leases []coordinationv1.Lease
	for _, l := range c.leases {
		leases = append(leases, *l)
	}
	var rules []v1alpha1.NodeProxyRules
	for _, r := range c.rules {
		rules = append(rules, *r)
	}
	silent, orphans, _ := c.Liveness.check(c.now, leases, rules, c.newest)
	var names []string
	for _, r := range silent {
		names = append(names, r.Name)
		condition := c.Liveness.silentCondition(r)
		condition.LastTransitionTime = metav1.NewTime(c.now)
		meta.SetStatusCondition(&c.rules[r.Name].Status.Conditions, condition)
		c.Liveness.reported(r.Name)
	}
	c.orphans = nil
	for _, l := range orphans {
		c.orphans = append(c.orphans, l.Name)
	}
	slices.Sort(names)
	return names
}

// pass lets time pass with a check every five seconds, and returns what was
// reported after how many seconds.
func (c *aCluster) pass(d time.Duration, each func()) string {
	var out []string
	for since := 5 * time.Second; since <= d; since += 5 * time.Second {
		c.now = c.now.Add(5 * time.Second)
		each()
		if names := c.check(); len(names) > 0 {
			out = append(out, fmt.Sprintf("%s at %.0f", strings.Join(names, ","), since.Seconds()))
		}
	}
	return strings.Join(out, "; ")
}

func (c *aCluster) expect(what, got, want string) {
	c.Helper()
	if got != want {
		c.Errorf("%s: reported %q, want %q", what, got, want)
	}
}

func nothing() {}

func TestSilentAgents(t *testing.T) {
	t.Run("after 90 s of the controller's own clock", func(t *testing.T) {
		c := newCluster(t, "a", "b")
		c.check()
		c.expect("b is renewed", c.pass(5*time.Minute, func() { c.renew("b", "100") }), "a at 90")
	})
	t.Run("from the first check, whatever time is in the Lease", func(t *testing.T) {
		c := newCluster(t, "a")
		c.leases["a"].Spec.RenewTime = &metav1.MicroTime{Time: c.now.AddDate(-1, 0, 0)}
		c.check()
		c.expect("an old Lease", c.pass(2*time.Minute, nothing), "a at 90")
	})
	t.Run("no agent has ever reported", func(t *testing.T) {
		c := newCluster(t, "a")
		delete(c.leases, "a")
		c.rules["a"].Status = v1alpha1.NodeProxyRulesStatus{}
		c.check()
		c.expect("no Lease", c.pass(2*time.Minute, nothing), "a at 90")
		if m := c.rules["a"].Status.Conditions[0].Message; !strings.Contains(m, "No agent has ever reported for this node (Lease ns/agent.a does not exist)") {
			t.Error(m)
		}
	})
	t.Run("a deleted Lease is no heartbeat", func(t *testing.T) {
		c := newCluster(t, "a")
		c.check()
		c.pass(time.Minute, nothing)
		delete(c.leases, "a")
		c.expect("deleted", c.pass(time.Minute, nothing), "a at 30")
	})
	t.Run("reported once, and again when it is overwritten", func(t *testing.T) {
		c := newCluster(t, "a")
		c.check()
		c.expect("dead", c.pass(time.Hour, nothing), "a at 90")
		c.programmed("a")
		c.expect("edited", c.pass(time.Hour, nothing), "a at 95") // seen by the first check
	})
	t.Run("an agent that returns is not reported before its Lease follows", func(t *testing.T) {
		c := newCluster(t, "a")
		c.check()
		c.expect("dead", c.pass(2*time.Minute, nothing), "a at 90")
		c.programmed("a")
		c.expect("back", c.pass(time.Minute, nothing), "")
		c.renew("a", "100")
		c.expect("renewed", c.pass(85*time.Second, nothing), "")
	})
	t.Run("a new controller knows what the last one has reported", func(t *testing.T) {
		c := newCluster(t, "a")
		c.check()
		c.pass(2*time.Minute, nothing)
		c.Liveness = New(5*time.Second, "ns")
		c.check()
		c.expect("restarted", c.pass(10*time.Minute, nothing), "")
	})
	t.Run("time without checks does not count", func(t *testing.T) {
		c := newCluster(t, "a")
		c.check()
		c.expect("before", c.pass(time.Minute, nothing), "")
		c.now = c.now.Add(time.Hour) // the API server was down, or the clock jumped
		c.expect("after", c.pass(time.Minute, nothing), "a at 35")
	})
	t.Run("a node that goes is forgotten", func(t *testing.T) {
		c := newCluster(t, "a")
		c.check()
		c.pass(time.Minute, nothing)
		delete(c.rules, "a")
		delete(c.leases, "a")
		c.pass(5*time.Second, nothing)
		if n := len(c.Liveness.agents); n != 0 {
			t.Errorf("%d agents are remembered", n)
		}
	})
	t.Run("Leases without rules", func(t *testing.T) {
		c := newCluster(t, "a")
		delete(c.rules, "a")
		c.leases["x"] = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "nodeproxy-controller"}}
		c.check()
		c.pass(85*time.Second, nothing)
		if len(c.orphans) > 0 {
			t.Errorf("orphans %v after 85 s", c.orphans)
		}
		c.pass(5*time.Second, nothing)
		if !slices.Equal(c.orphans, []string{"agent.a"}) {
			t.Errorf("orphans %v after 90 s", c.orphans)
		}
	})
}

func TestLaggingAgents(t *testing.T) {
	c := newCluster(t, "a", "b", "dead", "gone")
	meta.SetStatusCondition(&c.rules["dead"].Status.Conditions, c.Liveness.silentCondition(c.rules["dead"]))
	c.rules["gone"].Annotations = map[string]string{v1alpha1.AnnotationNodeAbsentSince: "2026-11-20T08:00:00Z"}
	c.renew("dead", "7")
	c.renew("gone", "7")
	lagging := func(want int32, known bool) {
		t.Helper()
		if got, k := c.Liveness.Lagging(); len(got) != int(want) || k != known {
			t.Errorf("at %s %v lagging, known %v; want %d, %v", c.now.Format(time.TimeOnly), got, k, want, known)
		}
	}
	alive := func() {
		for _, n := range []string{"a", "b"} {
			c.renew(n, c.leases[n].Annotations[v1alpha1.AnnotationAppliedResourceVersion])
		}
	}
	c.check()
	c.pass(55*time.Second, alive)
	lagging(0, false) // nothing is known in the first minute
	c.pass(5*time.Second, alive)
	lagging(0, true)
	c.newest = "1000" // more digits
	c.pass(5*time.Second, alive)
	c.renew("a", "1000")
	c.pass(55*time.Second, alive)
	lagging(0, true)
	c.pass(5*time.Second, alive)
	lagging(1, true) // b
	c.renew("b", "1001")
	c.pass(5*time.Second, alive)
	lagging(0, true)

	c.newest = "2000"
	c.pass(30*time.Second, alive)
	c.newest = "1500" // the newest was deleted: an agent that lists now cannot know 2000
	c.renew("a", "1500")
	c.renew("b", "1500")
	c.pass(35*time.Second, alive)
	lagging(0, true)
	delete(c.leases, "b")
	c.pass(5*time.Second, nothing)
	lagging(1, true)
}

// TestAgentsBesideAnotherProxyDoNotLag: they have nothing to apply, as those whose
// rules were removed, and after a takeover their Leases follow within half a minute.
func TestAgentsBesideAnotherProxyDoNotLag(t *testing.T) {
	c := newCluster(t, "new", "former", "removed")
	besideAnother := metav1.Condition{Type: "Programmed", Status: "False", Reason: "ConflictingProxy"}
	meta.SetStatusCondition(&c.rules["new"].Status.Conditions, besideAnother)
	meta.SetStatusCondition(&c.rules["former"].Status.Conditions, besideAnother)
	meta.SetStatusCondition(&c.rules["removed"].Status.Conditions, metav1.Condition{Type: "Programmed", Status: "False", Reason: "Removed"})
	applied := map[string]string{"new": "", "former": "100", "removed": ""}
	alive := func() {
		for n, version := range applied {
			c.renew(n, version)
		}
	}
	lagging := func(when string, want int32) {
		t.Helper()
		if got, known := c.Liveness.Lagging(); len(got) != int(want) || !known {
			t.Errorf("%s %v lagging, known %v; want %d", when, got, known, want)
		}
	}
	c.newest = "1000"
	c.pass(5*time.Minute, alive)
	lagging("beside another proxy", 0)
	c.programmed("former")
	c.pass(30*time.Second, alive)
	lagging("as one has taken over", 0)
	applied["former"] = "1000"
	c.pass(2*time.Minute, alive)
	lagging("later", 0)

	c.programmed("new")
	c.pass(55*time.Second, alive)
	lagging("as the other one has", 0)
	c.pass(5*time.Second, alive)
	lagging("where its Lease does not follow", 1)
}

// TestSilentSince: when an agent was last seen can be read from the message.
func TestSilentSince(t *testing.T) {
	renewed := time.Date(2026, 3, 1, 11, 55, 0, 0, time.UTC)
	c := SilentCondition(&v1alpha1.NodeProxyRules{}, "nodeproxy-system", renewed)
	rest, ok := strings.CutPrefix(c.Message, v1alpha1.MessageSilentSince)
	when, _, space := strings.Cut(rest, " ")
	if got, err := time.Parse(time.RFC3339, when); !ok || !space || err != nil || !got.Equal(renewed) {
		t.Errorf("%v: %q does not begin with %q, %s and a space", err, c.Message, v1alpha1.MessageSilentSince, renewed.Format(time.RFC3339))
	}
}
