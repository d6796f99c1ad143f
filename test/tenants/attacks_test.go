package tenants

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// attacker is the namespace of the tenant that attacks.
const attacker = "attacker"

// Reasons of the events that owners of Services get.
const (
	serviceNotRendered = "ServiceNotRendered"
	addressesSkipped   = "AddressesSkipped"
	localLeftOut       = "LocalEndpointsLeftOut"
)

// attack is something that a tenant can do.
type attack struct {
	// name and limit are for the table: limit is what stops it.
	name, limit string
	// large objects have megabytes. Those of heavy attacks are within the limits, and the controller or
	// nodes take long for each update.
	large, heavy bool
	// services is how many Services each may have a line in the log for good reason.
	services int
	// before prepares the attack, which nothing is measured of.
	before func(context.Context) error
	// objects returns what is written. A loop calls it with rising numbers, and what it
	// returns differs a little each time.
	objects func(round int) []client.Object
	// during is what else is done until the context ends.
	during func(context.Context) error
	// alone is done to its end, and again.
	alone func(context.Context) error
	// after ends what before has begun, and checks what can be seen only then.
	after func(context.Context) error
	// effect returns nil once the attack has had its effect, if it has one that can be seen.
	effect func(context.Context) error
}

func (r *rig) attacks() []attack {
	return append(append(r.tooLarge(), r.atLimits()...), r.others()...)
}

// tooLarge are Services over a limit.
func (r *rig) tooLarge() []attack {
	one := func(limit, name, object string, objects func(round int) []client.Object) attack {
		return attack{name: name, limit: limit, large: true, objects: objects, effect: r.hasEvent(serviceNotRendered, object, limit)}
	}
	return []attack{
		one("ports", "3,000 ports with 300 endpoints each", "ports", func(round int) []client.Object {
			return service("ports", 3000, nil, slice("ports", 3000, endpoints(round, 300)))
		}),
		one("combinations of a port with an endpoint", "500 ports with 1,000 endpoints each", "square", func(round int) []client.Object {
			return service("square", 500, nil, slice("square", 500, endpoints(round, 1000)))
		}),
		one("external and load-balancer IPs", "40 ports at 40,000 external IPs", "addresses", func(round int) []client.Object {
			return service("addresses", 40, func(s *corev1.Service) { s.Spec.ExternalIPs = addresses(round, 40_000) })
		}),
		one("external and load-balancer IPs", "100 ports at 65,000 external IPs", "more-addresses", func(round int) []client.Object {
			return service("more-addresses", 100, func(s *corev1.Service) { s.Spec.ExternalIPs = addresses(round, 65_000) })
		}),
		one("bytes of hints", fmt.Sprintf("%d ports with %d endpoints each, with the longest hints", hintedPorts, hinted), "hints", func(round int) []client.Object {
			return service("hints", hintedPorts, nil, withHints(slice("hints", hintedPorts, endpoints(round, hinted))))
		}),
		one("loadBalancerSourceRanges", "60,000 source ranges", "ranges", func(round int) []client.Object {
			return service("ranges", 1, balanced(round, 60_000))
		}),
	}
}

// atLimits are Services that are just within the limits, so that nodes program them.
func (r *rig) atLimits() []attack {
	// One more of any is over a limit of docs/security.md: with the one endpoint of the last port,
	// 25,000 combinations of a port with an endpoint, 10,000 of a port with an address, or of a
	// port with a source range.
	const ports, rangePorts = 100, 2
	const perPort, external, ranges = 252, 100, 4_999
	const within = "within the limits"
	return []attack{
		{name: fmt.Sprintf("%d ports with %d endpoints each", ports-1, perPort), limit: within, heavy: true, objects: func(round int) []client.Object {
			return service("limit", ports, nil, slice("limit", ports-1, endpoints(round, perPort)), r.lastPort("limit", ports))
		}, effect: r.answers("limit", ports)},
		{name: fmt.Sprintf("a port with %d endpoints", v1alpha1.MaxServiceEndpoints), limit: within, heavy: true, objects: r.mostEndpoints, effect: r.answers("endpoint-limit", 2)},
		{name: fmt.Sprintf("%d ports at %d external IPs", ports, external), limit: within, heavy: true, objects: func(round int) []client.Object {
			return service("address-limit", ports, func(s *corev1.Service) { s.Spec.ExternalIPs = addresses(round, external) },
				r.lastPort("address-limit", ports))
		}, effect: r.answers("address-limit", ports)},
		{name: fmt.Sprintf("%d ports with %d source ranges", rangePorts, ranges), limit: within, heavy: true, objects: func(round int) []client.Object {
			return service("range-limit", rangePorts, balanced(round, ranges), r.lastPort("range-limit", rangePorts))
		}, effect: r.answers("range-limit", rangePorts)},
	}
}

// others are attacks by other means than the size of one Service.
func (r *rig) others() []attack {
	return []attack{
		{
			name: "cluster IPs of later Services as external IPs", limit: "a cluster IP is its Service's",
			objects: func(int) []client.Object {
				return service("thief", 1, func(s *corev1.Service) {
					s.Spec.Ports[0].Port, s.Spec.ExternalIPs = 80, r.victimIPs()
				}, slice("thief", 1, []string{r.thief.IP()}))
			},
			effect: r.hasEvent(addressesSkipped, "thief", "10.96.2"),
		},
		r.takesAPIServer("an API server's address as an external IP", "api"),
		{
			name: fmt.Sprintf("a slice of %d ports beside %d endpoints of others on one node", widePorts, tallEndpoints), limit: "slice by slice", large: true, heavy: true,
			objects: r.wideAndTall, effect: r.hasLocal("wide"),
		},
		{
			name: fmt.Sprintf("one slice that names %d nodes, and changes", crowd), limit: "bytes written a second",
			before: r.countWrites, objects: everywhere, during: r.again(everywhere, 100*time.Millisecond),
			effect: r.crowdWritten, after: r.writesPaced,
		},
		{
			name: fmt.Sprintf("%d Services, policy Local, with %d pods each on one node", manyServices, podsEach), limit: "local endpoints of a node",
			services: manyServices,
			objects:  r.onOneNode, effect: r.hasEvent(localLeftOut, onOneNode, ""),
		},
		{
			name: "a Service that a kernel rejects", limit: "tried again alone",
			objects: func(round int) []client.Object {
				return service("rejected", 1, nil, slice("rejected", 1, append(endpoints(round, 10), rejectedAddress)))
			},
			effect: r.hasRejected,
		},
		{
			name: "reasons of rejection that change ten times a second", limit: "an event in ten minutes",
			objects: rejectedAnew, during: r.again(rejectedAnew, 100*time.Millisecond), effect: r.hasEvent(serviceNotRendered, "noisy", ""),
		},
		{name: "a rejected Service while a policy rolls out", limit: "its namespace waits alone", alone: r.rollOut},
		{
			name: "an unprivileged kube-proxy at " + pretended, limit: "root of the host only",
			before: r.pretend, effect: r.programmed, after: r.stopPretending,
		},
		{
			name: "an unprivileged server at ports 10249, 10256 and 19256", limit: "the agent tries again",
			before: r.occupy, effect: r.programmed, after: r.vacate,
		},
		{name: "a flood of connections to port 10256", limit: fmt.Sprintf("%d connections", healthConnections), during: r.flood},
		{name: "finalizers and labels on a Lease, by an agent's token", limit: "admission policy", before: r.guardLeases, during: r.markLease},
	}
}

// service returns a Service of the attacker with its EndpointSlices.
func service(name string, ports int, shape func(*corev1.Service), slices ...*discoveryv1.EndpointSlice) []client.Object {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: attacker, Name: name}}
	for i := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: portName(i), Port: int32(1 + i), TargetPort: intstr.FromInt(8080)}) //nolint:gosec // few
	}
	if shape != nil {
		shape(s)
	}
	out := []client.Object{s}
	for _, s := range slices {
		out = append(out, s)
	}
	return out
}

func portName(i int) string { return fmt.Sprintf("p%d", i) }

func slice(name string, ports int, addresses []string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: attacker, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(portName(i)), Port: new(int32(8080))})
	}
	for _, address := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}})
	}
	return s
}

// hinted is how many endpoints with the longest hints a slice can have, and hintedPorts how many ports
// they may have within the other limits.
const hinted, hintedPorts = 250, 99

// withHints gives the endpoints of a slice as many and as long hints as the API server accepts, and each
// its own.
func withHints(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	const most = 8
	for i := range s.Endpoints {
		hints := &discoveryv1.EndpointHints{}
		for j := range most {
			first := fmt.Sprintf("%d-%d-", i, j)
			hints.ForZones = append(hints.ForZones, discoveryv1.ForZone{Name: first + strings.Repeat("z", 63-len(first))})
			hints.ForNodes = append(hints.ForNodes, discoveryv1.ForNode{Name: first + strings.Repeat("n", 253-len(first))})
		}
		s.Endpoints[i].Hints = hints
	}
	return s
}

// local gives a Service traffic policy Local: the objects of nodes carry their local endpoints.
func local(s *corev1.Service) {
	s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
}

// balanced gives a Service a load balancer's address, and ranges of clients.
func balanced(round, ranges int) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, new(false)
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.77"}}
		for _, address := range addresses(round, ranges) {
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, address+"/32")
		}
	}
}

// everywhere is a Service with a pod on each of the crowd's nodes, all of which move in each round.
func everywhere(round int) []client.Object {
	s := slice("everywhere", 1, endpoints(round, crowd))
	for i := range s.Endpoints {
		s.Endpoints[i].NodeName = new(crowdName(i))
	}
	return service("everywhere", 1, local, s)
}

// onOneNode is what names of Services begin with whose pods are all on one node.
const onOneNode = "same-node-"

// The ports are as many that the local endpoints take more than a node's object carries: an
// endpoint of a port takes about 20 bytes there.
const manyServices, podsEach, portsEach = 200, 100, 4

const _ uint = manyServices*podsEach*portsEach*20 - v1alpha1.MaxNodeLocalBytes // does not compile if they are too few

// onOneNode returns all Services initially, and then some of them in each round.
func (r *rig) onOneNode(round int) []client.Object {
	const atOnce = 5
	first, count := round*atOnce, atOnce
	if round == 0 {
		count = manyServices
	}
	var out []client.Object
	for i := range count {
		n := (first + i) % manyServices
		name := fmt.Sprintf("%s%d", onOneNode, n)
		s := slice(name, portsEach, endpoints(round+n*podsEach, podsEach))
		for i := range s.Endpoints {
			s.Endpoints[i].NodeName = new(r.server.Node().Name())
		}
		out = append(out, service(name, portsEach, local, s)...)
	}
	return out
}

// endpoints are addresses of no pod; another round has others.
func endpoints(round, count int) []string {
	return from(netip.MustParseAddr("10.252.0.1"), round, count)
}

// addresses are addresses outside of the cluster.
func addresses(round, count int) []string {
	return from(netip.MustParseAddr("198.18.0.1"), round, count)
}

func from(first netip.Addr, skip, count int) []string {
	b := first.As4()
	n := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	out := make([]string, 0, count)
	for i := range count {
		v := n + uint32(skip+i) //nolint:gosec // few
		out = append(out, netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}).String())
	}
	return out
}

// write replaces objects, or creates them. It asks the API server once where it can: what the
// attack costs the client and the API server beyond that would count as harm.
func (r *rig) write(ctx context.Context, objects []client.Object) error {
	c := r.cluster.Client()
	for _, object := range objects {
		status := corev1.ServiceStatus{}
		if s, ok := object.(*corev1.Service); ok {
			status = s.Status
		}
		err := c.Update(ctx, object.DeepCopyObject().(client.Object))
		if apierrors.IsNotFound(err) {
			err = c.Create(ctx, object.DeepCopyObject().(client.Object))
		}
		if err != nil && !apierrors.IsAlreadyExists(err) { // another attack's goroutine was faster
			return err
		}
		if s, ok := object.(*corev1.Service); ok && len(status.LoadBalancer.Ingress) > 0 {
			before := client.MergeFrom(&corev1.Service{ObjectMeta: s.ObjectMeta})
			if err := c.Status().Patch(ctx, &corev1.Service{ObjectMeta: s.ObjectMeta, Status: status}, before); err != nil {
				return err
			}
		}
	}
	return nil
}

// lastPort is a slice with the thief, for the last port of a Service.
func (r *rig) lastPort(service string, ports int) *discoveryv1.EndpointSlice {
	s := slice(service, 0, []string{r.thief.IP()})
	s.Name += "-last"
	s.Ports = []discoveryv1.EndpointPort{{Name: new(portName(ports - 1)), Port: new(int32(8080))}}
	return s
}

// answers returns what returns nil once the last port of a Service of the attacker answers by
// the rules of all nodes.
func (r *rig) answers(name string, ports int) func(context.Context) error {
	return func(ctx context.Context) error {
		s := &corev1.Service{}
		if err := r.cluster.Client().Get(ctx, client.ObjectKey{Namespace: attacker, Name: name}, s); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, load.Patience)
		defer cancel()
		for _, visitor := range r.visitors {
			if _, err := visitor.Dial(ctx, "tcp", net.JoinHostPort(s.Spec.ClusterIP, strconv.Itoa(ports))); err != nil {
				return err
			}
		}
		return nil
	}
}

// hasEvent returns what returns nil once a Service of the attacker whose name begins so has an
// event with a reason and a part of its note. Those of Services that are gone do not count.
func (r *rig) hasEvent(reason, name, note string) func(context.Context) error {
	return func(ctx context.Context) error {
		services := &corev1.ServiceList{}
		if err := r.cluster.Client().List(ctx, services, client.InNamespace(attacker)); err != nil {
			return err
		}
		exist := map[types.UID]bool{}
		for i := range services.Items {
			exist[services.Items[i].UID] = true
		}
		events := &eventsv1.EventList{}
		if err := r.cluster.Client().List(ctx, events, client.InNamespace(attacker)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Reason == reason && exist[e.Regarding.UID] && strings.HasPrefix(e.Regarding.Name, name) && strings.Contains(e.Note, note) {
				return nil
			}
		}
		return fmt.Errorf("no event %s of Service %s/%s with %q", reason, attacker, name, note)
	}
}
