package liveness

import (
	"context"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// someNodes is a client that knows these Nodes, and counts.
type someNodes struct {
	client.Client
	nodes   map[string]bool
	gets    int
	deleted []string
}

func (c *someNodes) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	c.gets++
	if !c.nodes[key.Name] {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, key.Name)
	}
	return nil
}

func (c *someNodes) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return apierrors.NewServiceUnavailable("not in this test")
}

func (c *someNodes) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	c.deleted = append(c.deleted, o.GetName())
	return nil
}

func TestLeasesOfNodesThatExistCostNothing(t *testing.T) {
	cache := &someNodes{nodes: map[string]bool{"unserved": true, "seen-late": false}}
	live := &someNodes{nodes: map[string]bool{"unserved": true, "seen-late": true}}
	w := &Watcher{Client: cache, Live: live}
	for _, c := range []struct {
		node string
		asks int
		gone bool
	}{
		{"unserved", 0, false},
		{"seen-late", 1, false}, // the cache is behind
		{"gone", 1, true},
	} {
		live.gets, cache.deleted = 0, nil
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.AgentLeaseName(c.node)}}
		lease.Spec.HolderIdentity = &c.node
		if err := w.removeLease(t.Context(), lease); err != nil {
			t.Errorf("%s: %v", c.node, err)
		}
		if live.gets != c.asks || (len(cache.deleted) == 1) != c.gone {
			t.Errorf("%s: asked the API server %d times, deleted %v", c.node, live.gets, cache.deleted)
		}
	}
}

// A check reads all Leases from the API server, so a standby checks half as often, but often enough
// that the time counts.
func TestStandbyChecksLessOften(t *testing.T) {
	w := &Watcher{}
	for i, c := range []struct{ leads, want bool }{
		{false, true}, {false, false}, {false, true}, {false, false}, // 20 s apart
		{true, true}, {true, true}, {true, true},
		{false, false}, {false, true},
		{false, false}, {true, true}, // it leads now: not later than 10 s
	} {
		if got := w.due(c.leads); got != c.want {
			t.Errorf("%d: due %v, want %v", i, got, c.want)
		}
	}
	if standbyChecks >= missedChecks {
		t.Error("what a standby sees never counts")
	}
}
