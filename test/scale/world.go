package main

import (
	"context"
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/registry"
)

const (
	namespace = "default"
	// perSlice is how many endpoints the EndpointSlice controller puts in a slice.
	perSlice = 100
	zones    = 3
	// spare is the first number of endpoints that appear later.
	spare = 4 << 20
)

// service is a Service and its EndpointSlices as the world last wrote them.
type service struct {
	name   string
	index  int
	slices [][]int // the numbers of the endpoints of each slice
	// guest is one more endpoint of the first slice, in the states of a pod's life.
	guest *discoveryv1.Endpoint
}

func (s *service) size() int {
	n := 0
	for _, slice := range s.slices {
		n += len(slice)
	}
	return n
}

// world is what Kubernetes' own controllers would write: Nodes, Services and EndpointSlices. Only one
// goroutine changes it.
type world struct {
	client   client.Client
	store    *registry.Store
	nodes    int
	services []*service
	next     int // number of the next new endpoint
	random   *rand.Rand
}

// newWorld returns a world that is not written yet: most Services have 7 endpoints, a tenth has 30
// and a hundredth 100, on average 10. The probes come first, one for each size.
func newWorld(c *cluster.Cluster, nodes, services int, probes []int) *world {
	w := &world{client: c.Client(), store: registry.NewStore(c), nodes: nodes, random: rand.New(rand.NewPCG(1, 2))}
	number := 0
	add := func(name string, endpoints int) {
		s := &service{name: name, index: len(w.services)}
		for endpoints > 0 {
			slice := make([]int, min(endpoints, perSlice))
			for i := range slice {
				slice[i] = number
				number++
			}
			s.slices = append(s.slices, slice)
			endpoints -= len(slice)
		}
		w.services = append(w.services, s)
	}
	for _, size := range probes {
		add(probeName(size), size)
	}
	for i := range services {
		size := 7
		switch {
		case i%100 == 0:
			size = 100
		case i%10 == 0:
			size = 30
		}
		add(fmt.Sprintf("app-%05d", i), size)
	}
	w.next = spare
	return w
}

func probeName(size int) string { return fmt.Sprintf("probe-%05d", size) }

// endpoints is the number of endpoints of all Services.
func (w *world) endpoints() int {
	n := 0
	for _, s := range w.services {
		n += s.size()
	}
	return n
}

// probe returns the probe of a size.
func (w *world) probe(size int) *service {
	for _, s := range w.services {
		if s.name == probeName(size) {
			return s
		}
	}
	return nil
}

// fill writes all objects to etcd.
func (w *world) fill(ctx context.Context) error {
	var entries []registry.Entry
	for i := range w.nodes {
		entries = append(entries, registry.Entry{Key: "/registry/minions/" + nodeName(i), Object: node(i)})
	}
	for _, s := range w.services {
		entries = append(entries, w.entriesOf(s)...)
	}
	return w.store.Write(ctx, entries)
}

func (w *world) entriesOf(s *service) []registry.Entry {
	n := 4096 + s.index
	out := s.object().Entries(fmt.Sprintf("10.96.%d.%d", n>>8, n&0xff), map[string]string{"app": s.name})
	for i := range s.slices {
		slice := w.slice(s, i)
		slice.UID, slice.CreationTimestamp, slice.Generation = registry.UID(3, s.index*10_000+i), metav1.Now(), 1
		slice.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "discovery.k8s.io/v1",
			Time: new(metav1.Now()), FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fieldsOfSlice),
		}}
		out = append(out, registry.Entry{Key: "/registry/endpointslices/" + namespace + "/" + slice.Name, Object: slice})
	}
	return out
}

// fieldsOfSlice are the fields that the EndpointSlice controller owns.
const fieldsOfSlice = `{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},"f:endpoints.kubernetes.io/last-change-trigger-time":{}},` +
	`"f:generateName":{},"f:labels":{".":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:kubernetes.io/service-name":{}},` +
	`"f:ownerReferences":{".":{},"k:{\"uid\":\"00000000-0000-4000-8001-000000000000\"}":{}}},"f:ports":{}}`

// add writes a Service later, by the API server.
func (w *world) add(ctx context.Context, name string, endpoints int) (*service, error) {
	s := &service{name: name, index: len(w.services)}
	for n := endpoints; n > 0; n -= perSlice {
		slice := make([]int, min(n, perSlice))
		for i := range slice {
			slice[i] = w.fresh()
		}
		s.slices = append(s.slices, slice)
	}
	w.services = append(w.services, s)
	return s, w.store.Write(ctx, w.entriesOf(s))
}

func (w *world) fresh() int {
	w.next++
	return w.next
}

// replace replaces one random endpoint of a Service, as when a pod is replaced, and returns the new
// address.
func (w *world) replace(ctx context.Context, s *service) (string, error) {
	i := w.random.IntN(len(s.slices))
	return w.replaceIn(ctx, s, i, 1)
}

// replaceIn replaces random endpoints of a slice, with one write, and returns the last new address.
func (w *world) replaceIn(ctx context.Context, s *service, slice, count int) (string, error) {
	last := 0
	for _, i := range w.random.Perm(len(s.slices[slice]))[:count] {
		last = w.fresh()
		s.slices[slice][i] = last
	}
	return address(last), w.client.Update(ctx, w.slice(s, slice))
}

// live writes the life of a pod of a Service, and calls pause after each step.
func (w *world) live(ctx context.Context, s *service, pause func() error) error {
	number := w.fresh()
	for _, state := range []discoveryv1.EndpointConditions{
		{Ready: new(false), Serving: new(false), Terminating: new(false)},
		{Ready: new(true), Serving: new(true), Terminating: new(false)},
		{Ready: new(false), Serving: new(true), Terminating: new(true)},
		{}, // gone
	} {
		s.guest = nil
		if state.Ready != nil {
			guest := w.endpoint(s, number)
			guest.Conditions = state
			s.guest = &guest
		}
		if err := w.client.Update(ctx, w.slice(s, 0)); err != nil {
			return err
		}
		if err := pause(); err != nil {
			return err
		}
	}
	return nil
}

// some returns a random Service that is no probe.
func (w *world) some(probes int) *service {
	return w.services[probes+w.random.IntN(len(w.services)-probes)]
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func (w *world) nodeOf(endpoint int) int { return endpoint * 7919 % w.nodes }

// address of an endpoint.
func address(number int) string {
	return fmt.Sprintf("10.%d.%d.%d", number>>16, number>>8&0xff, number&0xff)
}

func node(i int) *corev1.Node {
	cidr := fmt.Sprintf("172.%d.%d.0/24", 32+i>>8, i&0xff)
	return &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{
			Name: nodeName(i), UID: registry.UID(0, i), CreationTimestamp: metav1.Now(),
			Labels: map[string]string{corev1.LabelOSStable: "linux", corev1.LabelHostname: nodeName(i), corev1.LabelTopologyZone: zoneOf(i)},
		},
		Spec: corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.16.%d.%d", i>>8, i&0xff)}, {Type: corev1.NodeHostName, Address: nodeName(i)},
		}},
	}
}

func zoneOf(node int) string { return fmt.Sprintf("zone-%d", node%zones) }

func (s *service) object() *registry.Service {
	return &registry.Service{Namespace: namespace, Name: s.name, UID: registry.UID(1, s.index), TargetPort: 8080}
}

func (w *world) slice(s *service, i int) *discoveryv1.EndpointSlice {
	out := s.object().Slice(i)
	for _, number := range s.slices[i] {
		out.Endpoints = append(out.Endpoints, w.endpoint(s, number))
	}
	if i == 0 && s.guest != nil {
		out.Endpoints = append(out.Endpoints, *s.guest)
	}
	return out
}

func (w *world) endpoint(s *service, number int) discoveryv1.Endpoint {
	n := w.nodeOf(number)
	return s.object().Endpoint(number, address(number), nodeName(n), zoneOf(n))
}
