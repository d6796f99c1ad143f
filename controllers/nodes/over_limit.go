package nodes

import (
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// overLimits remembers which Services have been read while over a limit: once that ends, their nodes
// must be rendered again. Reading and remembering are one step, so a reader of a Service over a limit
// is followed by the event that ends it. The reconciler is one, because after a restart no event may
// name such a Service before it is within again.
type overLimits struct {
	reader client.Reader // reads come from the cache

	mu       sync.Mutex
	services sets.Set[types.NamespacedName] // guarded by mu
}

func newOverLimits(reader client.Reader) *overLimits {
	return &overLimits{reader: reader, services: sets.Set[types.NamespacedName]{}}
}

// slicesOf returns the slices of a Service, and whether they exceed a limit.
func (l *overLimits) slicesOf(ctx context.Context, svc types.NamespacedName) (all []*discoveryv1.EndpointSlice, over bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if all, err = objects.SlicesOf(ctx, l.reader, svc); err != nil {
		return nil, false, err
	}
	if over = render.OverLimit(all); over {
		l.services.Insert(svc)
	}
	return all, over, nil
}

// sliceChange is a Service when one of its slices changes: its other slices, whether it is over a
// limit now, and whether that has ended.
type sliceChange struct {
	others      []*discoveryv1.EndpointSlice
	over, ended bool
}

// change reads the other slices of a Service when the named one changes to after; nil: it is gone.
func (l *overLimits) change(ctx context.Context, svc types.NamespacedName, name string, after *discoveryv1.EndpointSlice) (sliceChange, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all, err := objects.SlicesOf(ctx, l.reader, svc)
	if err != nil {
		return sliceChange{}, err
	}
	c := sliceChange{others: slices.DeleteFunc(all, func(s *discoveryv1.EndpointSlice) bool { return s.Name == name })}
	now := c.others
	if after != nil {
		now = append(now, after)
	}
	if c.over = render.OverLimit(now); c.over {
		l.services.Insert(svc)
	} else {
		c.ended = l.services.Has(svc)
		l.services.Delete(svc)
	}
	return c, nil
}

// servicesOn returns the Services that have a slice which names a node, with all their slices.
func (l *overLimits) servicesOn(ctx context.Context, node string) ([]render.ServiceSlices, error) {
	naming, err := objects.ListSlices(ctx, l.reader, client.MatchingFields{objects.IndexSlicesByNode: node})
	if err != nil {
		return nil, err
	}
	seen := map[types.NamespacedName]bool{}
	var out []render.ServiceSlices
	for _, slice := range naming {
		svc, ok := render.ServiceOf(slice)
		if !ok || seen[svc] {
			continue
		}
		seen[svc] = true
		all, _, err := l.slicesOf(ctx, svc)
		if err != nil {
			return nil, err
		}
		service := &corev1.Service{} // empty if there is none
		if _, err := objects.Get(ctx, l.reader, svc, service); err != nil {
			return nil, err
		}
		out = append(out, render.ServiceSlices{Service: svc, Slices: all, Local: render.HasPolicyLocal(service)})
	}
	return out, nil
}
