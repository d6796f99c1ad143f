package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	namespace = "default"
	// probeIndex is the Service with one endpoint that is moved. It is the last
	// that address has room for.
	probeIndex   = maxServices
	maxServices  = 30000
	maxEndpoints = 100
	// endpointPort is where endpoints answer.
	endpointPort = 8080
	// endpointRange holds all endpoints; see address.
	endpointRange = "10.128.0.0/9"
)

// world is the objects that both proxies see.
type world struct {
	client    client.Client
	services  int
	endpoints int
	// clusterIPs are those of the Services, by index; probe is that of the
	// Service whose only endpoint is moved.
	clusterIPs []string
	probe      string
	changes    int // made so far
}

func serviceName(i int) string {
	if i == probeIndex {
		return "probe"
	}
	return fmt.Sprintf("svc-%05d", i)
}

// address is that of an endpoint of the i-th Service.
func address(i, number int) string { return fmt.Sprintf("10.%d.%d.%d", 128+i/250, i%250, number) }

// nodeOf spreads endpoints over five hundred nodes, of which the first few
// exist: a node has room for a hundred pods or so.
func nodeOf(i, number int) string { return fmt.Sprintf("node-%d", (i+37*number)%500+1) }

// create writes all objects.
func (w *world) create(ctx context.Context) error {
	w.clusterIPs = make([]string, w.services)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan int)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for i := range work {
				ip, err := w.createService(ctx, i)
				if err != nil {
					cancel(err)
					return
				}
				if i == probeIndex {
					w.probe = ip
				} else {
					w.clusterIPs[i] = ip
				}
			}
		})
	}
	send := func(i int) {
		select {
		case work <- i:
		case <-ctx.Done():
		}
	}
	send(probeIndex)
	for i := range w.services {
		send(i)
	}
	close(work)
	group.Wait()
	return context.Cause(ctx)
}

// createService creates a Service without selector and its EndpointSlice, and
// returns the cluster IP.
func (w *world) createService(ctx context.Context, i int) (string, error) {
	if err := w.client.Create(ctx, w.slice(i, 0)); err != nil {
		return "", err
	}
	service := service(i)
	err := w.client.Create(ctx, service)
	return service.Spec.ClusterIP, err
}

func service(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName(i)},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

// slice holds the endpoints of a Service. The last of them has another address
// for each generation.
func (w *world) slice(i, generation int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: serviceName(i) + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: ptr.To[int32](endpointPort), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	count := w.endpoints
	if i == probeIndex {
		count = 1
	}
	for j := 1; j <= count; j++ {
		number := j
		if j == count && generation > 0 {
			number = movedTo(generation)
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address(i, number)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			NodeName:   new(nodeOf(i, number)),
		})
	}
	return slice
}

// movedTo is the number of the endpoint that a generation adds.
func movedTo(generation int) int { return maxEndpoints + 1 + generation%150 }

// changeOne moves one endpoint of one of the Services, each time of another.
func (w *world) changeOne(ctx context.Context) error {
	w.changes++
	return w.client.Update(ctx, w.slice((w.changes*37+11)%w.services, w.changes))
}

// moveProbe moves the only endpoint of the probe and returns its new address.
func (w *world) moveProbe(ctx context.Context) (string, error) {
	w.changes++
	return address(probeIndex, movedTo(w.changes)), w.client.Update(ctx, w.slice(probeIndex, w.changes))
}
