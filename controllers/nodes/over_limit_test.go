package nodes

import (
	"context"
	"slices"
	"sync"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// oneSlice is a cache with a slice of shop/cart, until it is deleted.
type oneSlice struct {
	client.Reader
	mu    sync.Mutex
	slice *discoveryv1.EndpointSlice
}

func (c *oneSlice) delete() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slice = nil
}

func (c *oneSlice) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slice != nil {
		list.(*discoveryv1.EndpointSliceList).Items = []discoveryv1.EndpointSlice{*c.slice}
	}
	return nil
}

// TestReadsRaceTheEndOfAnExcess: a reader of a Service over a limit is followed by a change that
// reports its end, and nothing is remembered for longer.
func TestReadsRaceTheEndOfAnExcess(t *testing.T) {
	svc := types.NamespacedName{Namespace: "shop", Name: "cart"}
	large := sliceOn("large", 1, v1alpha1.MaxServiceEndpoints+1, "node-1")
	const rounds, readers = 2000, 2
	seen := 0
	for round := range rounds {
		cache := &oneSlice{slice: large}
		l := newOverLimits(cache)
		over, change := make([]bool, readers), sliceChange{}
		work := []func() error{func() (err error) {
			cache.delete()
			change, err = l.change(t.Context(), svc, large.Name, nil)
			return err
		}}
		for i := range readers {
			work = append(work, func() (err error) {
				_, over[i], err = l.slicesOf(t.Context(), svc)
				return err
			})
		}
		if round%2 == 1 { // a single processor runs them in a certain order
			slices.Reverse(work)
		}
		var group sync.WaitGroup
		for _, one := range work {
			group.Go(func() {
				if err := one(); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if slices.Contains(over, true) {
			seen++
			if !change.ended {
				t.Fatal("the end of an excess that a reader has seen is not reported")
			}
		}
		if len(l.services) > 0 {
			t.Fatal("a Service within the limits is remembered as over one")
		}
	}
	if seen == 0 || seen == rounds {
		t.Errorf("%d of %d rounds read the excess before its end: this proves too little", seen, rounds)
	}
}
