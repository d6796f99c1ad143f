package controllers

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// TestStopsBeforeTheCacheHasFilled stops a manager whose API server does not answer.
func TestStopsBeforeTheCacheHasFilled(t *testing.T) {
	asked := make(chan struct{})
	var once sync.Once
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(asked) })
		<-r.Context().Done()
	}))
	defer server.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	mgr, err := ctrl.NewManager(&rest.Config{Host: server.URL}, ctrl.Options{
		NewCache: NewCache(ctx), Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			m := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
			m.Add(corev1.SchemeGroupVersion.WithKind("Service"), meta.RESTScopeNamespace)
			return m, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mgr.GetCache().GetInformer(ctx, &corev1.Service{}, cache.BlockUntilSynced(false)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	select {
	case <-asked:
	case <-time.After(time.Minute):
		t.Fatal("the API server was not asked")
	}
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the manager does not stop")
	}
}

// TestTrimmedSlice: endpoints share what is equal, and lose nothing that a reconciler reads.
func TestTrimmedSlice(t *testing.T) {
	endpoint := func(address, node string, ready bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{
			Addresses: []string{address}, NodeName: new(node),
			Conditions: discoveryv1.EndpointConditions{Ready: new(ready), Serving: new(true)},
		}
	}
	endpoints := func() []discoveryv1.Endpoint {
		return []discoveryv1.Endpoint{endpoint("10.0.0.1", "a", true), endpoint("10.0.0.2", "b", false), endpoint("10.0.0.3", "a", true), {}}
	}
	slice := &discoveryv1.EndpointSlice{Endpoints: append(make([]discoveryv1.Endpoint, 0, 1000), endpoints()...)}
	slice.Endpoints[0].Addresses = []string{"10.0.0.1", "10.0.0.9"}
	slice.Endpoints[0].Hostname, slice.Endpoints[0].Zone = new("h"), new("z")
	trimSlice(slice)
	if diff := cmp.Diff(endpoints(), slice.Endpoints); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	first, third := slice.Endpoints[0], slice.Endpoints[2]
	if first.NodeName != third.NodeName || first.Conditions.Ready != third.Conditions.Ready || first.Conditions.Ready != first.Conditions.Serving {
		t.Error("equal names and conditions are stored twice")
	}
	if addresses := first.Addresses; cap(addresses) != 1 {
		t.Errorf("memory for %d addresses of an endpoint", cap(addresses))
	}
	if cap(slice.Endpoints) > 2*len(slice.Endpoints) {
		t.Errorf("capacity for %d endpoints, of which there are %d", cap(slice.Endpoints), len(slice.Endpoints))
	}
}
