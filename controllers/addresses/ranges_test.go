package addresses

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// rangeServer answers as an API server does that has ServiceCIDRs, or not.
type rangeServer struct {
	client.Reader
	cache.Informers
	cache.Informer

	mu       sync.Mutex
	asked    int
	err      error
	deny     int // so many more tries to watch fail
	items    []networkingv1.ServiceCIDR
	handler  toolscache.ResourceEventHandler
	followed chan struct{} // closed once there is a handler
}

func (s *rangeServer) set(err error, items ...networkingv1.ServiceCIDR) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.items = err, items
}

func (s *rangeServer) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	list.(*networkingv1.ServiceCIDRList).Items = s.items
	return s.err
}

func (s *rangeServer) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deny > 0 {
		s.deny--
		return nil, errors.New("the cache has not synced")
	}
	return s, nil
}

func (s *rangeServer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	s.handler = h
	close(s.followed)
	return nil, nil //nolint:nilnil // it is not used
}

func serviceCIDR(name string, cidrs ...string) networkingv1.ServiceCIDR {
	return networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// within waits until a condition is true.
func within(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !is() {
		select {
		case <-deadline:
			t.Fatal("not within 10 s: " + what)
		case <-time.After(time.Millisecond):
		}
	}
}

// TestServiceRangesAppear: a cluster without ServiceCIDRs is asked again now and then, and
// followed once it has them.
func TestServiceRangesAppear(t *testing.T) {
	group := schema.GroupResource{Group: networkingv1.GroupName, Resource: "servicecidrs"}
	for name, c := range map[string]struct {
		err   error
		known bool
		pause time.Duration
	}{
		"no such kind":     {&meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: group.Group, Kind: "ServiceCIDR"}}, true, rangesAbsentPause},
		"no such path":     {apierrors.NewNotFound(group, ""), true, rangesAbsentPause},
		"no permission":    {apierrors.NewForbidden(group, "", errors.New("no")), true, rangesRetryPause},
		"no answer so far": {errors.New("connection refused"), false, rangesRetryPause},
	} {
		t.Run(name, func(t *testing.T) {
			clk := testclock.NewFakeClock(time.Unix(1, 0))
			server := &rangeServer{err: c.err, followed: make(chan struct{})}
			r := NewRangeWatcher(server, server, clk)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- r.Start(ctx) }()
			within(t, "it waits", clk.HasWaiters)
			if ranges, known := r.Request(); known != c.known {
				t.Errorf("known %t", known)
			} else if _, found := ranges.Of(netip.MustParseAddr("10.96.0.1")); found {
				t.Error("a range out of nothing")
			}
			server.set(nil, serviceCIDR("kubernetes", "10.96.0.0/16", "fd00::/112"))
			clk.Step(c.pause)
			if !c.known { // what has asked is woken up
				everywhere := render.NewServiceRanges((<-r.Changed).Object.(*networkingv1.ServiceCIDR).Spec.CIDRs)
				for _, address := range []string{"192.0.2.1", "2001:db8::1"} {
					if _, found := everywhere.Of(netip.MustParseAddr(address)); !found {
						t.Errorf("a Service with %s is not woken up", address)
					}
				}
			}
			<-server.followed
			for _, inside := range []string{"10.96.0.1", "fd00::1"} {
				ranges, known := r.Request()
				if _, found := ranges.Of(netip.MustParseAddr(inside)); !found || !known {
					t.Errorf("%s is in no range", inside)
				}
			}
			server.set(nil, serviceCIDR("kubernetes", "10.96.0.0/16", "fd00::/112"), serviceCIDR("more", "10.97.0.0/16"))
			more := serviceCIDR("more", "10.97.0.0/16")
			go server.handler.OnAdd(&more, false)
			if e := <-r.Changed; e.Object.GetName() != "more" {
				t.Errorf("changed is %s", e.Object.GetName())
			}
			if ranges, _ := r.Request(); func() bool { _, found := ranges.Of(netip.MustParseAddr("10.97.0.1")); return !found }() {
				t.Error("the new range is not known")
			}
			server.set(nil, serviceCIDR("kubernetes", "10.96.0.0/16", "fd00::/112"))
			go server.handler.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: &more})
			<-r.Changed
			if ranges, _ := r.Request(); func() bool { _, found := ranges.Of(netip.MustParseAddr("10.97.0.1")); return found }() {
				t.Error("the range is still known")
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestServiceRangesAreFollowedInTheEnd: that they cannot be watched is no reason to give up, which
// would end the controller.
func TestServiceRangesAreFollowedInTheEnd(t *testing.T) {
	clk := testclock.NewFakeClock(time.Unix(1, 0))
	server := &rangeServer{deny: 2, followed: make(chan struct{})}
	server.set(nil, serviceCIDR("kubernetes", "10.96.0.0/16"))
	r := NewRangeWatcher(server, server, clk)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Start(ctx) }()
	for range 2 {
		within(t, "it waits", clk.HasWaiters)
		clk.Step(rangesRetryPause)
	}
	<-server.followed
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
