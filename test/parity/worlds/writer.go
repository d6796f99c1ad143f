package worlds

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Writer makes the API server hold a world. It remembers what it wrote, so that
// a step writes what has changed and nothing else.
type Writer struct {
	client   client.Client
	services map[string]written[*corev1.Service]
	slices   map[string]written[*discoveryv1.EndpointSlice]
	zone     string
	marks    int
}

// written is an object as it was asked for and as the API server answered.
type written[T client.Object] struct{ asked, stored T }

// NewWriter returns a Writer for an API server that holds nothing yet.
func NewWriter(c client.Client) *Writer {
	return &Writer{client: c,
		services: map[string]written[*corev1.Service]{}, slices: map[string]written[*discoveryv1.EndpointSlice]{}}
}

// MakeNamespaces makes the namespaces of the drawn objects.
func MakeNamespaces(ctx context.Context, c client.Client) error {
	for _, name := range []string{namespaceA, namespaceB} {
		if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return fmt.Errorf("creating namespace %s: %w", name, err)
		}
	}
	return nil
}

// Begin makes the node and the settings of a world.
func (wr *Writer) Begin(ctx context.Context, w *World) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName}}
	if err := client.IgnoreNotFound(wr.client.Delete(ctx, node, client.GracePeriodSeconds(0))); err != nil {
		return fmt.Errorf("deleting the former node: %w", err)
	}
	node = w.Node.object()
	if err := wr.client.Create(ctx, node); err != nil {
		return fmt.Errorf("creating the node: %w", err)
	}
	node.Status.Addresses = w.Node.addresses
	if err := wr.client.Status().Update(ctx, node); err != nil {
		return fmt.Errorf("writing the node's addresses: %w", err)
	}
	wr.zone = w.Node.zone

	settings := w.Settings.ForNodeProxy()
	if w.Audit {
		// Nothing reports virtual servers that the other proxy adds.
		settings.Enforcement, settings.Sync.VerifyIntervalSeconds = new(v1alpha1.Audit), new(int32(5))
	}
	return WriteSettings(ctx, wr.client, settings)
}

// WriteSettings makes the NodeProxy have settings.
func WriteSettings(ctx context.Context, c client.Client, settings *v1alpha1.ProxySettings) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the controller writes its status
		np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
		err := c.Get(ctx, client.ObjectKeyFromObject(np), np)
		np.Spec.Settings = (*v1alpha1.WrittenSettings)(settings)
		switch {
		case err == nil:
			err = c.Update(ctx, np)
		case client.IgnoreNotFound(err) == nil:
			err = c.Create(ctx, np)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("writing the settings: %w", err)
	}
	return nil
}

// Clear deletes all that was written but the settings.
func (wr *Writer) Clear(ctx context.Context) error {
	for _, key := range slices.Sorted(maps.Keys(wr.slices)) {
		if err := remove(ctx, wr.client, wr.slices, key); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(wr.services)) {
		if err := remove(ctx, wr.client, wr.services, key); err != nil {
			return err
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName}}
	return client.IgnoreNotFound(wr.client.Delete(ctx, node, client.GracePeriodSeconds(0)))
}

// Write brings the objects up to date, in an order that shuffle gives, and
// marks the end. The node comes first, because its watch has no mark.
func (wr *Writer) Write(ctx context.Context, w *World, shuffle *rand.Rand) (Mark, error) {
	if wr.zone != w.Node.zone {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: NodeName}}
		if err := wr.client.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
			return Mark{}, err
		}
		node.Labels = w.Node.labels()
		if err := wr.client.Update(ctx, node); err != nil {
			return Mark{}, fmt.Errorf("changing the node's zone: %w", err)
		}
		wr.zone = w.Node.zone
	}
	services, endpointSlices := w.Objects()
	var jobs []func(context.Context) error
	for _, key := range slices.Sorted(maps.Keys(services)) {
		jobs = append(jobs, func(ctx context.Context) error { return wr.putService(ctx, key, services[key]) })
	}
	for _, key := range slices.Sorted(maps.Keys(endpointSlices)) {
		jobs = append(jobs, func(ctx context.Context) error { return put(ctx, wr.client, wr.slices, key, endpointSlices[key]) })
	}
	for _, key := range slices.Sorted(maps.Keys(wr.slices)) {
		if endpointSlices[key] == nil && !strings.HasPrefix(key, markerKey) {
			jobs = append(jobs, func(ctx context.Context) error { return remove(ctx, wr.client, wr.slices, key) })
		}
	}
	// What a new Service needs has to be free before it comes.
	var first []func(context.Context) error
	for _, key := range slices.Sorted(maps.Keys(wr.services)) {
		if services[key] != nil || key == markerKey {
			continue
		}
		job := func(ctx context.Context) error { return remove(ctx, wr.client, wr.services, key) }
		if wr.inTheWay(w, key) {
			first = append(first, job)
		} else {
			jobs = append(jobs, job)
		}
	}
	shuffle.Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
	for _, job := range append(first, jobs...) {
		if err := job(ctx); err != nil {
			return Mark{}, err
		}
	}
	return wr.mark(ctx, w.MarkLocal)
}

// inTheWay reports whether a Service that goes holds a name or, being of another
// world, addresses and ports that others of this world want.
func (wr *Writer) inTheWay(w *World, key string) bool {
	name, version, _ := strings.Cut(key, "#")
	return !strings.HasPrefix(version, fmt.Sprintf("%d.", w.Seed)) || w.Find(name) != nil && !w.Find(name).Gone
}

// put writes an object unless it is stored as it is asked for.
func put[T client.Object](ctx context.Context, c client.Client, have map[string]written[T], key string, asked T) error {
	asked = asked.DeepCopyObject().(T) // it goes on being changed
	old, exists := have[key]
	if exists && reflect.DeepEqual(old.asked, asked) {
		return nil
	}
	stored := asked.DeepCopyObject().(T)
	var err error
	if exists {
		stored.SetResourceVersion(old.stored.GetResourceVersion())
		err = c.Update(ctx, stored)
	} else {
		err = c.Create(ctx, stored)
	}
	if err != nil {
		return fmt.Errorf("writing %T %s: %w", asked, key, err)
	}
	have[key] = written[T]{asked, stored}
	return nil
}

func remove[T client.Object](ctx context.Context, c client.Client, have map[string]written[T], key string) error {
	stored := have[key].stored
	if err := c.Delete(ctx, stored); err != nil {
		return fmt.Errorf("deleting %T %s: %w", stored, key, err)
	}
	delete(have, key)
	return nil
}

// putService also writes the status, which the API server leaves out otherwise.
func (wr *Writer) putService(ctx context.Context, key string, asked *corev1.Service) error {
	if err := put(ctx, wr.client, wr.services, key, asked); err != nil {
		return err
	}
	stored := wr.services[key].stored
	if reflect.DeepEqual(stored.Status.LoadBalancer, asked.Status.LoadBalancer) {
		return nil
	}
	stored.Status = *asked.Status.DeepCopy()
	if err := wr.client.Status().Update(ctx, stored); err != nil {
		return fmt.Errorf("writing the status of Service %s: %w", key, err)
	}
	return nil
}

// Mark is what a program's rules hold once it has seen all writes before it: a
// Service and a slice, because each kind has a watch of its own.
type Mark struct {
	Port, EndpointPort int32
}

const (
	markerName = "marker"
	markerKey  = namespaceA + "/" + markerName
)

// MarkerAddress is the address of the Service that each mark has.
func MarkerAddress(f Family) string {
	if f == IPv6 {
		return "fd00:10:96::ff01"
	}
	return "10.96.255.1"
}

// MarkerEndpoint is the address of the endpoint that each mark has.
func MarkerEndpoint(f Family) string {
	if f == IPv6 {
		return "fd00:10:244:ff::1"
	}
	return "10.244.255.1"
}

// mark changes the port of the Service "marker" and of its endpoints.
func (wr *Writer) mark(ctx context.Context, local bool) (Mark, error) {
	wr.marks++
	m := Mark{Port: int32(10000 + wr.marks%10000), EndpointPort: int32(20000 + wr.marks%10000)} //nolint:gosec // they fit
	for _, addresses := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		endpoint := MarkerEndpoint(IPv4)
		if addresses == discoveryv1.AddressTypeIPv6 {
			endpoint = MarkerEndpoint(IPv6)
		}
		name := markerName + "-" + strings.ToLower(string(addresses))
		err := put(ctx, wr.client, wr.slices, namespaceA+"/"+name, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespaceA, Name: name,
				Labels: map[string]string{discoveryv1.LabelServiceName: markerName}},
			AddressType: addresses,
			Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(m.EndpointPort)}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{endpoint}}},
		})
		if err != nil {
			return m, err
		}
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceA, Name: markerName},
		Spec: corev1.ServiceSpec{
			ClusterIP: MarkerAddress(IPv4), ClusterIPs: []string{MarkerAddress(IPv4), MarkerAddress(IPv6)},
			IPFamilies:     []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			Ports:          []corev1.ServicePort{{Port: m.Port, Protocol: corev1.ProtocolTCP}},
		},
	}
	if local {
		service.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	return m, wr.putService(ctx, markerKey, service)
}
