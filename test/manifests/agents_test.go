package manifests_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/agent"
	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// rulesOf makes the NodeProxyRules of a node as the controller, the only user with
// that permission.
func rulesOf(t *testing.T, node string) *v1alpha1.NodeProxyRules {
	t.Helper()
	rules := &v1alpha1.NodeProxyRules{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: v1alpha1.NodeProxyRulesSpec{
			FormatVersion: 1, SettingsRevision: "7d1f0a9c", Settings: *v1alpha1.CompleteSettings(nil),
			Node: v1alpha1.NodeFacts{Addresses: []string{"192.0.2.21"}},
		},
	}
	create(t, clientWith(t, tokenOf(t, controllerAccount, nil)), rules)
	return rules
}

// emptyInventory makes the NodeProxy of a cluster without Services.
func emptyInventory(t *testing.T) {
	t.Helper()
	proxy := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	create(t, server.client, proxy)
	proxy.Status.Inventory = &v1alpha1.Inventory{Hash: v1alpha1.FormatInventoryHash(0)}
	if err := server.client.Status().Update(t.Context(), proxy); err != nil {
		t.Fatal(err)
	}
}

// startAgent runs a real agent, but for the kernel, with a token, until stop is
// called or the test ends.
func startAgent(t *testing.T, node, token string) (stop func()) {
	t.Helper()
	c, err := apiclient.New(configWith(token))
	if err != nil {
		t.Fatal(err)
	}
	a, err := agent.New(agent.Options{
		NodeName: node, Namespace: namespace, Client: c,
		Dataplanes: map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: dataplanetest.NewFake()},
		Probe:      func(context.Context, string) (string, error) { return "", nil },
		Version:    "v0.0.0-test", Clock: clock.RealClock{},
		Log: funcr.New(func(prefix, args string) { t.Log(node, prefix, args) }, funcr.Options{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the agent of %s: %v", node, err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestAgentReportsItsOwnNodeByItsToken(t *testing.T) {
	const node = "own-1"
	rulesOf(t, node)
	emptyInventory(t)
	startAgent(t, node, tokenOf(t, agentAccount, podOn(t, node, agentAccount)))
	eventually(t, func(ctx context.Context) error {
		rules := &v1alpha1.NodeProxyRules{}
		if err := server.client.Get(ctx, client.ObjectKey{Name: node}, rules); err != nil {
			return err
		}
		if c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed); c == nil || c.Status != metav1.ConditionTrue {
			return fmt.Errorf("the condition Programmed is %+v", c)
		}
		lease := &coordinationv1.Lease{}
		return server.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: v1alpha1.AgentLeaseName(node)}, lease)
	})
}

// applied is an object as server-side apply sends it.
func statusOf(node string) *v1alpha1.NodeProxyRules {
	return &v1alpha1.NodeProxyRules{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeProxyRules"},
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Status:     v1alpha1.NodeProxyRulesStatus{Services: 7},
	}
}

// writeStatus writes the status of a node as agents do.
func writeStatus(c client.Client, node string) func(context.Context) error {
	return func(ctx context.Context) error {
		patch := []byte(`{"metadata":{"managedFields":[{}]},"status":{"services":7}}`)
		return c.Status().Patch(ctx, statusOf(node), client.RawPatch(types.MergePatchType, patch))
	}
}

func leaseOf(name, holder string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}
}

func TestAgentWritesNothingOfOtherNodes(t *testing.T) {
	const own, other = "writer-1", "writer-2"
	rulesOf(t, own)
	others := rulesOf(t, other)
	ownPod, otherPod := podOn(t, own, agentAccount), podOn(t, other, agentAccount)
	agents := clientWith(t, tokenOf(t, agentAccount, ownPod))
	create(t, clientWith(t, tokenOf(t, agentAccount, otherPod)), leaseOf("agent."+other, other))
	create(t, server.client, leaseOf("agent.held", other))
	unbound := clientWith(t, tokenOf(t, agentAccount, nil))
	ofNode := clientWith(t, tokenOf(t, agentAccount, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: own}}))

	apply := func(c client.Client, object client.Object) func(context.Context) error {
		return func(ctx context.Context) error {
			//nolint:staticcheck // what the agent does, without generated types
			return c.Patch(ctx, object, client.Apply, client.ForceOwnership, client.FieldOwner("nodeproxy-agent"))
		}
	}
	for _, c := range []struct {
		name   string
		write  func(context.Context) error
		denied string // part of the message; empty: allowed
	}{
		{name: "its own status", write: writeStatus(agents, own)},
		{name: "its own Lease, new", write: apply(agents, leaseOf("agent."+own, own))},
		{name: "its own Lease again", write: apply(agents, leaseOf("agent."+own, own))},
		{
			name: "another status", write: writeStatus(agents, other),
			denied: "the agent of node writer-1 can only write the status of its own NodeProxyRules, not of writer-2",
		},
		{
			name: "another status, all of it",
			write: func(ctx context.Context) error {
				changed := others.DeepCopy()
				changed.Status.Services = 9
				return agents.Status().Update(ctx, changed)
			},
			denied: `cannot update resource "nodeproxyrules/status"`,
		},
		{name: "another Lease that is there", write: apply(agents, leaseOf("agent."+other, own)), denied: "can only write its own Lease, not agent.writer-2"},
		{name: "another Lease that is not", write: apply(agents, leaseOf("agent.nowhere", "nowhere")), denied: "not agent.nowhere"},
		{
			name:   "another Lease, created",
			write:  func(ctx context.Context) error { return agents.Create(ctx, leaseOf("agent.nowhere", own)) },
			denied: "not agent.nowhere",
		},
		{name: "the controller's Lease", write: apply(agents, leaseOf("nodeproxy-controller", own)), denied: "not nodeproxy-controller"},
		{name: "its own Lease for another holder", write: apply(agents, leaseOf("agent."+own, other)), denied: "must be held by writer-1"},
		{name: "a Lease by another hash", write: apply(agents, leaseOf("agent-of-long-name.0", own)), denied: "not agent-of-long-name.0"},
		{name: "its own status by an unbound token", write: writeStatus(unbound, own), denied: "the token of this agent names no node"},
		{name: "its own Lease by an unbound token", write: apply(unbound, leaseOf("agent."+own, own)), denied: "the token of this agent names no node"},
		{name: "its own status by a token of its Node", write: writeStatus(ofNode, own)},
		{name: "its own Lease by a token of its Node", write: apply(ofNode, leaseOf("agent."+own, own))},
		{name: "another status by a token of its Node", write: writeStatus(ofNode, other), denied: "not of writer-2"},
		{name: "its own spec", write: apply(agents, statusOf(own)), denied: `cannot patch resource "nodeproxyrules"`},
		{
			name: "a Lease elsewhere",
			write: func(ctx context.Context) error {
				return agents.Create(ctx, inNamespace(leaseOf("agent."+own, own), "default"))
			},
			denied: `cannot create resource "leases"`,
		},
		{name: "its own Lease, deleted", write: func(ctx context.Context) error { return agents.Delete(ctx, leaseOf("agent."+own, own)) }, denied: `cannot delete resource "leases"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, c.write(t.Context()), c.denied)
		})
	}
	t.Cleanup(func() { _ = server.client.Delete(context.Background(), leaseOf("agent."+own, own)) })
}

// TestAgentWritesNoMetadataOfItsLease but the annotation that agents write, be the
// Lease new or not; what others have put there stays.
func TestAgentWritesNoMetadataOfItsLease(t *testing.T) {
	const own = "writer-3"
	agents := clientWith(t, tokenOf(t, agentAccount, podOn(t, own, agentAccount)))
	lease := func(change func(*metav1.ObjectMeta)) *coordinationv1.Lease {
		l := leaseOf("agent."+own, own)
		l.Annotations = map[string]string{v1alpha1.AnnotationAppliedResourceVersion: "12345678"}
		if change != nil {
			change(&l.ObjectMeta)
		}
		return l
	}
	t.Cleanup(func() {
		l := lease(nil)
		if err := server.client.Get(context.Background(), client.ObjectKeyFromObject(l), l); err == nil {
			l.Finalizers = nil
			_ = server.client.Update(context.Background(), l) // else deleting it reports it
			_ = server.client.Delete(context.Background(), l) // nothing else has this name
		}
	})
	forbidden := map[string]func(*metav1.ObjectMeta){
		"a label":     func(m *metav1.ObjectMeta) { m.Labels = map[string]string{"app": "web"} },
		"a finalizer": func(m *metav1.ObjectMeta) { m.Finalizers = []string{"example.org/stay"} },
		"an owner": func(m *metav1.ObjectMeta) {
			m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: own, UID: "1"}}
		},
		"an annotation": func(m *metav1.ObjectMeta) { m.Annotations["example.org/note"] = "x" },
		"a long annotation": func(m *metav1.ObjectMeta) {
			m.Annotations[v1alpha1.AnnotationAppliedResourceVersion] = strings.Repeat("1", 65)
		},
	}
	apply := func(l *coordinationv1.Lease) error {
		l.ManagedFields = nil
		//nolint:staticcheck // what the agent does, without generated types
		return agents.Patch(t.Context(), l, client.Apply, client.ForceOwnership, client.FieldOwner("nodeproxy-agent"))
	}
	const denied = "must stay unchanged"
	for name, change := range forbidden {
		expect(t, agents.Create(t.Context(), lease(change)), denied)
		if err := apply(lease(change)); err == nil || !strings.Contains(err.Error(), denied) {
			t.Errorf("%s on a new Lease: %v", name, err)
		}
	}
	if err := apply(lease(nil)); err != nil {
		t.Fatal(err)
	}
	stored := lease(nil)
	if err := server.client.Get(t.Context(), client.ObjectKeyFromObject(stored), stored); err != nil {
		t.Fatal(err)
	}
	stored.Labels, stored.Finalizers = map[string]string{"team": "net"}, []string{"example.org/audit"}
	stored.Annotations["example.org/seen"] = "yes"
	if err := server.client.Update(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	for name, change := range forbidden {
		if err := apply(lease(change)); err == nil || !strings.Contains(err.Error(), denied) {
			t.Errorf("%s on a Lease that is there: %v", name, err)
		}
	}
	for name, change := range map[string]func(*metav1.ObjectMeta){
		"label taken off":      func(m *metav1.ObjectMeta) { m.Labels = nil },
		"finalizer taken off":  func(m *metav1.ObjectMeta) { m.Finalizers = nil },
		"annotation taken off": func(m *metav1.ObjectMeta) { delete(m.Annotations, "example.org/seen") },
		"annotation changed":   func(m *metav1.ObjectMeta) { m.Annotations["example.org/seen"] = "no" },
	} {
		changed := stored.DeepCopy()
		change(&changed.ObjectMeta)
		if err := agents.Patch(t.Context(), changed, client.MergeFrom(stored)); err == nil || !strings.Contains(err.Error(), denied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := apply(lease(func(m *metav1.ObjectMeta) { m.Annotations[v1alpha1.AnnotationAppliedResourceVersion] = "12345679" })); err != nil {
		t.Errorf("a renewal beside what others have put there: %v", err)
	}
}

// TestAgentOfANodeWithALongName writes a Lease under a hash, which only the
// holder ties to the node.
func TestAgentOfANodeWithALongName(t *testing.T) {
	node := strings.TrimSuffix(strings.Repeat("long-name.", 25), ".") // 249 bytes
	agents := clientWith(t, tokenOf(t, agentAccount, podOn(t, node, agentAccount)))
	create(t, agents, leaseOf(v1alpha1.AgentLeaseName(node), node))
	expect(t, agents.Create(t.Context(), leaseOf("agent-of-long-name.1", "another")), "must be held by")
	expect(t, agents.Create(t.Context(), leaseOf("agent.another", node)), "can only write its own Lease")
}

func inNamespace(lease *coordinationv1.Lease, namespace string) *coordinationv1.Lease {
	lease.Namespace = namespace
	return lease
}

// expect fails the test unless err is a denial whose message holds a text; for
// an empty text, unless there is no error.
func expect(t *testing.T, err error, denied string) {
	t.Helper()
	switch {
	case denied == "" && err != nil:
		t.Errorf("denied: %v", err)
	case denied != "" && err == nil:
		t.Errorf("allowed; want a denial with %q in its message", denied)
	case denied != "" && !strings.Contains(err.Error(), denied):
		t.Errorf("%v; want a denial with %q in its message", err, denied)
	}
}
