package nodes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/rollouts"
)

// besides is the pace of connections where other tests run at the same time.
const besides = 100

// edgePool is the name of the policy for the pool, which is all three nodes.
const edgePool = "edge-pool"

// pool is a cluster whose nodes a policy selects, while connections are made.
type pool struct {
	*take
	load   *connections
	follow *rollouts.Follower
}

// TestPolicies moves the nodes of a pool to Audit and back by a NodeProxyPolicy, and
// closes and opens Services by ServiceProxyPolicies, while connections to Services of
// all kinds are made and others are held, of which none fails.
func TestPolicies(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	t.Run("NodeProxyPolicy", func(t *testing.T) { p.in(t).movesThePool() })
	t.Run("ServiceProxyPolicy", func(t *testing.T) { p.in(t).shapesServices() })
	p.load.End() // and report what failed between what the parts of the test look at
	held, questions := p.load.Held()
	t.Logf("in all: %d new TCP connections, %d new UDP flows, %d held ones with %d questions, %d failed",
		p.load.Answered("tcp"), p.load.Answered("udp"), held, questions, len(p.load.Failures()))
}

func newPool(t *testing.T) *pool {
	p := &pool{take: takeOf(startNodes(t, 3, "zone-a", "zone-a", "zone-b"))}
	targets := p.makeServices()
	for _, node := range p.cluster.Nodes() {
		p.makeOthersRules(node) // by which the agent chooses the variant of iptables
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name()}}
		label := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"pool":"edge"}}}`))
		if err := p.cluster.Client().Patch(t.Context(), object, label); err != nil {
			t.Fatal(err)
		}
	}
	p.startAgents()
	p.settled()
	follow, err := rollouts.Follow(t.Context(), p.cluster)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(follow.End)
	p.follow = follow
	p.load = startLoad(t, besides, targets)
	return p
}

// settled waits until all endpoints are there and each node has them: with Audit what
// comes after that makes a difference.
func (p *pool) settled() {
	p.Helper()
	servers := 2 * len(p.cluster.Nodes())
	p.until(func(ctx context.Context) error {
		list := &v1alpha1.ServiceProxyRulesList{}
		if err := p.cluster.Client().List(ctx, list); err != nil {
			return err
		}
		want := 0 // chains of endpoints
		for _, rules := range list.Items {
			for i, port := range rules.Spec.Ports {
				count := 0
				for _, group := range rules.Spec.EndpointsByPort()[i] {
					count += len(group.Addresses)
				}
				if expected := servers * len(rules.Spec.ClusterIPs); count != expected && rules.Name != "default.kubernetes" {
					return fmt.Errorf("%s, port %s: %d endpoints, want %d", rules.Name, port.Name, count, expected)
				}
				want += count
			}
		}
		for _, node := range p.cluster.Nodes() {
			count := 0
			for _, line := range p.saved(node) {
				if strings.Contains(line, " :KUBE-SEP-") {
					count++
				}
			}
			if count != want {
				return fmt.Errorf("%s has %d chains of endpoints, want %d", node.Name(), count, want)
			}
		}
		return nil
	})
}

// in is the pool for a part of the test.
func (p *pool) in(t *testing.T) *pool {
	e := *p.env
	e.T = t
	k := *p.take
	k.env = &e
	l := &connections{Load: p.load.Load, t: t, reported: len(p.load.Failures()), least: p.load.least}
	return &pool{take: &k, load: l, follow: p.follow}
}

// movesThePool goes from Enforce to Audit and back.
func (p *pool) movesThePool() {
	c := p.cluster.Client()
	p.silence()
	policy := &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: edgePool}}
	enforcement := func(value v1alpha1.Enforcement) func() error {
		return func() error {
			_, err := controllerutil.CreateOrUpdate(p.Context(), c, policy, func() error {
				policy.Spec.NodeSelector = v1alpha1.LabelSelector{MatchLabels: map[string]string{"pool": "edge"}}
				policy.Spec.Settings.Enforcement = &value
				return nil
			})
			return err
		}
	}
	p.rolledOut("Enforce to Audit", v1alpha1.ReasonAuditInSync, enforcement(v1alpha1.Audit))
	p.silent("with Audit")
	p.ports(false)
	p.rolledOut("Audit to Enforce", v1alpha1.ReasonProgrammed, enforcement(v1alpha1.Enforce))
	p.silent("with Enforce again, without any change")
	p.ports(true)
	p.reported(policy)

	// What the policy sets last is what NodeProxy sets, too: without it nothing changes.
	p.follow.Again()
	p.load.during("the policy is deleted", time.Second, func() {
		if err := c.Delete(p.Context(), policy); err != nil {
			p.Fatal(err)
		}
		p.shapedBy()
	})
	story, err := p.follow.Story(p.Context())
	if err != nil || len(story.Given) > 0 {
		p.Errorf("without the policy: %v, %v; want no change", story, err)
	}
}

// rolledOut makes a change and wants that it goes from one node to the other, by
// zones in turn, while connections are made, and that all report a reason then.
func (p *pool) rolledOut(title, reason string, change func() error) {
	p.Helper()
	p.follow.Again()
	begin := time.Now()
	p.load.during(title, 3*time.Second, func() {
		if err := change(); err != nil {
			p.Fatal(err)
		}
		p.until(func(ctx context.Context) error { return rollouts.Applied(ctx, p.cluster.Client(), edgePool, 3) })
		p.shapedBy(edgePool)
		p.reports(reason, "")
	})
	story, err := p.follow.Story(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	if err := story.OneByOne(); err != nil {
		p.Errorf("%s: %v", title, err)
	}
	if got, want := story.Order(), []string{"node-1", "node-3", "node-2"}; !slices.Equal(got, want) {
		p.Errorf("%s: the nodes came in the order %q, want %q: by zones in turn, then by name", title, got, want)
	}
	p.Logf("%s: by way of %s, in %s", title, strings.Join(story.Order(), ", "), time.Since(begin).Round(100*time.Millisecond))
}

// shapedBy waits until the settings of each node are shaped by these policies.
func (p *pool) shapedBy(names ...string) {
	p.Helper()
	p.until(func(ctx context.Context) error {
		list := &v1alpha1.NodeProxyRulesList{}
		if err := p.cluster.Client().List(ctx, list); err != nil {
			return err
		}
		if got, want := len(list.Items), len(p.cluster.Nodes()); got != want {
			return fmt.Errorf("there are %d NodeProxyRules, want %d", got, want)
		}
		for _, rules := range list.Items {
			if !slices.Equal(rules.Spec.Policies, names) {
				return fmt.Errorf("%s is shaped by %q, want %q", rules.Name, rules.Spec.Policies, names)
			}
		}
		return nil
	})
}

// reported wants events about a policy that has gone through twice: each of them once,
// and no warning.
func (p *pool) reported(policy *v1alpha1.NodeProxyPolicy) {
	p.Helper()
	list := &eventsv1.EventList{}
	if err := p.cluster.Client().List(p.Context(), list); err != nil {
		p.Fatal(err)
	}
	counts := map[string]int{}
	for _, event := range list.Items {
		if event.Regarding.Kind != "NodeProxyPolicy" || event.Regarding.Name != policy.Name {
			continue
		}
		p.Logf("event: %s, %s: %s", event.Type, event.Reason, event.Note)
		counts[event.Reason]++
		if event.Type != corev1.EventTypeNormal || event.Regarding.UID != policy.UID {
			p.Errorf("the event %+v", event)
		}
	}
	for _, reason := range []string{v1alpha1.ReasonProgressing, v1alpha1.ReasonApplied} {
		if counts[reason] != 2 {
			p.Errorf("there are events %v, want two of each of %s and %s", counts, v1alpha1.ReasonProgressing, v1alpha1.ReasonApplied)
			break
		}
	}
}
