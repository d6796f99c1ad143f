package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/registry"
)

const (
	namespace = "default"
	// probeIndex is the Service with one endpoint that is moved. Before it is one that is added.
	probeIndex  = maxServices + 1
	maxServices = 50000
	// maxEndpoints is how many endpoints a Service has at most, besides those to which one
	// is moved.
	maxEndpoints = 100
	// endpointPort is where endpoints answer.
	endpointPort = 8080
	// manyServices is from how many on Services are written to etcd: the API server would take 25 minutes to
	// create 44,000.
	manyServices = 10_000
	// endpointRange holds all endpoints; see address.
	endpointRange = "10.128.0.0/9"
)

// world is the objects that both proxies see.
type world struct {
	client    client.Client
	store     *registry.Store
	services  int
	endpoints int
	// withEndpoints has an Endpoints object written beside each EndpointSlice.
	withEndpoints bool
	// clusterIPs are those of the Services, by index; probe is that of the
	// Service whose only endpoint is moved.
	clusterIPs []string
	probe      string
	changes    atomic.Int64 // made so far
}

func serviceName(i int) string {
	if i == probeIndex {
		return "probe"
	}
	return fmt.Sprintf("svc-%05d", i)
}

// address is that of an endpoint of the i-th Service. 128 addresses are for each Service, which
// leaves those of pods alone.
func address(i, number int) string {
	n := 128*i + number
	return fmt.Sprintf("10.%d.%d.%d", 128+n>>16, n>>8&0xff, n&0xff)
}

// nodeNumber spreads endpoints over five hundred nodes, of which the first few
// exist: a node has room for a hundred pods or so.
func nodeNumber(i, number int) int { return (i+37*number)%500 + 1 }

// writers write at the same time.
const writers = 16

// create writes all objects.
func (w *world) create(ctx context.Context) error {
	w.clusterIPs = make([]string, w.services)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan int)
	var group sync.WaitGroup
	for range writers {
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
	for i := range w.services {
		send(i)
	}
	send(probeIndex) // whose address must not be one of those written to etcd
	close(work)
	group.Wait()
	return context.Cause(ctx)
}

// createService creates a Service without selector and its EndpointSlice, and
// returns the cluster IP.
func (w *world) createService(ctx context.Context, i int) (string, error) {
	slice := w.slice(i, 0)
	if err := w.client.Create(ctx, slice); err != nil {
		return "", err
	}
	if w.withEndpoints {
		if err := w.client.Create(ctx, endpointsOf(i, slice)); err != nil {
			return "", err
		}
	}
	if w.services > manyServices && i != probeIndex {
		n := 512 + i // the API server gives out random ones, of which the first are for other purposes
		ip := fmt.Sprintf("10.96.%d.%d", n>>8, n&0xff)
		return ip, w.store.Write(ctx, stored(i).Entries(ip, nil))
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

// stored is the i-th Service. Its UID is another one if the API server has created it, which no program compares.
func stored(i int) *registry.Service {
	return &registry.Service{Namespace: namespace, Name: serviceName(i), UID: registry.UID(1, i), TargetPort: endpointPort}
}

// slice holds the endpoints of a Service. The last of them has another address
// for each generation.
func (w *world) slice(i, generation int) *discoveryv1.EndpointSlice {
	service := stored(i)
	slice := service.Slice(0)
	count := w.endpoints
	if i == probeIndex {
		count = 1
	}
	for j := 1; j <= count; j++ {
		number := j
		if j == count && generation > 0 {
			number = movedTo(generation)
		}
		node := nodeNumber(i, number)
		slice.Endpoints = append(slice.Endpoints, service.Endpoint(number, address(i, number), fmt.Sprintf("node-%d", node), fmt.Sprintf("zone-%d", node%3)))
	}
	return slice
}

// endpointsOf is what kube-proxy reads in mode userspace instead of an EndpointSlice.
func endpointsOf(i int, slice *discoveryv1.EndpointSlice) *corev1.Endpoints { //nolint:staticcheck // that kube-proxy knows no other
	subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Name: *slice.Ports[0].Name, Port: *slice.Ports[0].Port}}} //nolint:staticcheck // as above
	for _, endpoint := range slice.Endpoints {
		subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{IP: endpoint.Addresses[0]})
	}
	return &corev1.Endpoints{ //nolint:staticcheck // as above
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName(i)}, Subsets: []corev1.EndpointSubset{subset}, //nolint:staticcheck // as above
	}
}

// movedTo is the number of the endpoint that a generation adds.
func movedTo(generation int) int { return maxEndpoints + 1 + generation%23 }

// changeOne moves one endpoint of one of the Services, each time of another. The endpoint that
// goes still answers, as a terminating pod does.
func (w *world) changeOne(ctx context.Context) error {
	change := int(w.changes.Add(1))
	return w.client.Update(ctx, w.slice(w.changedBy(change), change))
}

// changedBy is the Service that a change changes.
func (w *world) changedBy(change int) int { return (change*37 + 11) % w.services }

// service is where the i-th Service is served.
func (w *world) service(i int) netip.AddrPort {
	ip := w.probe
	if i != probeIndex {
		ip = w.clusterIPs[i]
	}
	return netip.AddrPortFrom(netip.MustParseAddr(ip), 80)
}

// busy is some Service, every other time one of those that changed last.
func (w *world) busy() int {
	if rand.IntN(2) == 0 {
		return rand.IntN(w.services)
	}
	return w.changedBy(max(0, int(w.changes.Load())-rand.IntN(10)))
}

// moveProbe moves the only endpoint of the probe and returns its new address.
func (w *world) moveProbe(ctx context.Context) (string, error) {
	change := int(w.changes.Add(1))
	return address(probeIndex, movedTo(change)), w.client.Update(ctx, w.slice(probeIndex, change))
}
