package parity

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The namespaces of the drawn objects.
const (
	namespaceA = "par-a"
	namespaceB = "par-b"
)

// The most that a world has of each kind of port; see service.port.
const portsPerService = 4

// world is what the API server holds for a while. What kube-proxy leaves to
// chance is never drawn: two Services with one address and port, and two
// entries for one endpoint of which none wins (S 1.5 of what kube-proxy does:
// the one that is not terminating wins).
type world struct {
	dice
	seed     uint64
	settings settings
	node     nodeFacts
	// guest: the node has one more address of each family.
	guest    bool
	services []*service
	drawn    int // Services ever drawn
	// strays are slices that belong to no Service.
	strays []*slice
	// log tells what each change did.
	log []string
}

// service is a Service with its slices. Addresses and ports follow from its
// number, so that no two Services have any in common.
type service struct {
	number  int
	version int // raised where the API needs the object to be made anew
	object  *corev1.Service
	gone    bool // deleted, but its slices are still there
	slices  []*slice
	sliced  int // slices ever drawn
	hints   hints
	// endpoints are the entries by address. Slices that name one address say
	// the same of it, but for an extra entry that says it is terminating.
	endpoints map[string]*discoveryv1.Endpoint
}

// slice is an EndpointSlice of a Service.
type slice struct {
	name      string
	namespace string
	labels    map[string]string
	addresses discoveryv1.AddressType
	ports     []discoveryv1.EndpointPort
	members   []member
}

// member is an entry of a slice. One that is leaving says that the endpoint is
// terminating, whatever other slices say of it.
type member struct {
	address string
	leaving bool
}

func newWorld(seed uint64) *world {
	d := newDice(seed)
	w := &world{dice: d, seed: seed, settings: d.settings(), node: d.nodeFacts()}
	for range d.between(10, 20) {
		w.addService()
	}
	if seed%30 == 17 {
		w.addLarge()
	}
	w.strays = append(w.strays, &slice{
		name: "names", namespace: w.services[0].object.Namespace, addresses: discoveryv1.AddressTypeFQDN,
		labels:  map[string]string{discoveryv1.LabelServiceName: w.services[0].object.Name},
		ports:   []discoveryv1.EndpointPort{{Name: new("p0"), Port: new(int32(80))}},
		members: []member{{address: "pod.example.org"}},
	}, &slice{
		name: "stray", namespace: namespaceA, addresses: discoveryv1.AddressTypeIPv4,
		labels:  map[string]string{discoveryv1.LabelServiceName: "nobody"},
		ports:   []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(80))}},
		members: []member{{address: "10.244.1.250"}},
	})
	return w
}

func (w *world) addService() *service {
	s := w.newService(w.drawn)
	w.drawn++
	w.services = append(w.services, s)
	return s
}

// addLarge adds a Service that makes the cluster a large one for kube-proxy.
func (w *world) addLarge() {
	s := w.addService()
	s.object.Spec.Type, s.object.Labels = corev1.ServiceTypeClusterIP, nil
	s.object.Spec.ClusterIP, s.object.Spec.ExternalName = "", ""
	w.drawFamilies(s)
	for len(s.object.Spec.IPFamilies) < 2 { // large in both
		w.drawFamilies(s)
	}
	w.drawExternal(s)
	w.drawLoadBalancer(s)
	for _, addresses := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		for range 3 {
			w.addSlice(s, addresses)
			sl := s.slices[len(s.slices)-1]
			delete(sl.labels, corev1.IsHeadlessService)
			sl.ports = []discoveryv1.EndpointPort{{Name: new(s.object.Spec.Ports[0].Name), Protocol: new(s.object.Spec.Ports[0].Protocol), Port: new(int32(80))}}
			for i := range 400 {
				m := member{address: fmt.Sprintf("10.245.%d.%d", len(s.slices)*2+i/200, i%200+1)}
				if addresses == discoveryv1.AddressTypeIPv6 {
					m.address = fmt.Sprintf("fd00:10:245::%x:%x", len(s.slices), i+1)
				}
				s.endpoints[m.address] = &discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}
				sl.members = append(sl.members, m)
			}
		}
	}
}

// large tells whether kube-proxy takes the cluster for a large one: it counts
// the endpoints of all Services' ports. The marker has one.
func (w *world) large(f family) bool {
	total := 1
	for _, s := range w.services {
		if _, left := s.object.Labels["service.kubernetes.io/service-proxy-name"]; s.gone || left || !s.proxied() {
			continue
		}
		for _, p := range s.object.Spec.Ports {
			total += len(s.endpointsOf(f, p))
		}
	}
	return total > 1000
}

// endpointsOf are the endpoints of a port in any state.
func (s *service) endpointsOf(f family, p corev1.ServicePort) map[string]bool {
	out := map[string]bool{}
	want := map[family]corev1.IPFamily{ipv4: corev1.IPv4Protocol, ipv6: corev1.IPv6Protocol}[f]
	if !slices.Contains(s.object.Spec.IPFamilies, want) {
		return out
	}
	for _, sl := range s.slices {
		if _, hidden := sl.labels[corev1.IsHeadlessService]; hidden || string(sl.addresses) != string(f) {
			continue
		}
		for _, sp := range sl.ports {
			if *sp.Name != p.Name || sp.Port == nil || sp.Protocol == nil || *sp.Protocol != p.Protocol {
				continue
			}
			for _, m := range sl.members {
				out[fmt.Sprint(m.address, " ", *sp.Port)] = true
			}
		}
	}
	return out
}

func (w *world) newService(number int) *service {
	s := &service{number: number, endpoints: map[string]*discoveryv1.Endpoint{}, hints: w.hintKind()}
	s.object = &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: pick(w.dice, namespaceA, namespaceB), Name: fmt.Sprintf("svc%d", number),
	}}
	if w.chance(5) {
		s.object.Name += "-" + strings.Repeat("x", 62-len(s.object.Name)) // the longest name
	}
	w.drawKind(s)
	for _, addresses := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		n := pick(w.dice, 0, 1, 1, 1, 2, 3)
		if len(s.object.Spec.IPFamilies) == 1 && w.chance(70) && (s.object.Spec.IPFamilies[0] == corev1.IPv4Protocol) != (addresses == discoveryv1.AddressTypeIPv4) {
			n = 0
		}
		for range n {
			w.addSlice(s, addresses)
		}
	}
	return s
}

// drawKind draws everything of a Service but its name.
func (w *world) drawKind(s *service) {
	spec := &corev1.ServiceSpec{Type: pick(w.dice,
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeClusterIP, corev1.ServiceTypeClusterIP,
		corev1.ServiceTypeNodePort, corev1.ServiceTypeNodePort, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer)}
	s.object.Spec, s.object.Status = *spec, corev1.ServiceStatus{}
	spec = &s.object.Spec
	w.drawPorts(s)
	switch kind := w.IntN(100); {
	case kind < 4:
		spec.Type, spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
		return
	case kind < 8:
		spec.Type, spec.ClusterIP, spec.ClusterIPs = corev1.ServiceTypeClusterIP, corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		return
	}
	w.drawFamilies(s)
	spec.PublishNotReadyAddresses = w.chance(10)
	w.drawInternal(s)
	w.drawAffinity(s)
	if w.chance(30) {
		w.drawExternalIPs(s)
	}
	w.drawExternal(s)
	w.drawLoadBalancer(s)
	if w.chance(4) {
		s.object.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": pick(w.dice, "", "other")}
	}
}

// proxied tells whether a Service has an address of its own.
func (s *service) proxied() bool {
	return s.object.Spec.Type != corev1.ServiceTypeExternalName && s.object.Spec.ClusterIP != corev1.ClusterIPNone
}

func (w *world) drawFamilies(s *service) {
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	spec := &s.object.Spec
	spec.IPFamilies = pick(w.dice, []corev1.IPFamily{v4}, []corev1.IPFamily{v6},
		[]corev1.IPFamily{v4, v6}, []corev1.IPFamily{v4, v6}, []corev1.IPFamily{v6, v4})
	spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
	if len(spec.IPFamilies) == 2 {
		spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	}
	spec.ClusterIPs = nil
	// A Service that is made anew has another address.
	n := s.number%200 + 20 + 256*(1+s.version%100)
	for _, f := range spec.IPFamilies {
		ip := fmt.Sprintf("10.96.%d.%d", n/256, n%256)
		if f == v6 {
			ip = fmt.Sprintf("fd00:10:96::%x", n)
		}
		spec.ClusterIPs = append(spec.ClusterIPs, ip)
	}
	spec.ClusterIP = spec.ClusterIPs[0]
}

// port is the i-th port of a Service; with it go its node port and the port of
// its endpoints.
func (s *service) port(i int) int32 { return int32(1000 + s.number*portsPerService + i) } //nolint:gosec // it fits

func (w *world) drawPorts(s *service) {
	protocol := func() corev1.Protocol {
		return pick(w.dice, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
	}
	spec := &s.object.Spec
	spec.Ports = nil
	n := w.between(1, 3)
	for i := range n {
		p := corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Protocol: protocol(), Port: s.port(i)}
		if n == 1 && w.chance(50) {
			p.Name = ""
		}
		spec.Ports = append(spec.Ports, p)
	}
	if n == 2 && w.chance(40) { // one number over two protocols, as DNS has
		spec.Ports[0].Protocol, spec.Ports[1].Protocol = corev1.ProtocolUDP, corev1.ProtocolTCP
		spec.Ports[1].Port = spec.Ports[0].Port
	}
}

func (w *world) drawInternal(s *service) {
	s.object.Spec.InternalTrafficPolicy = new(pick(w.dice, corev1.ServiceInternalTrafficPolicyCluster,
		corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal))
}

func (w *world) drawAffinity(s *service) {
	spec := &s.object.Spec
	spec.SessionAffinity, spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	if w.chance(30) {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{
			TimeoutSeconds: new(pick[int32](w.dice, 1, 10, 600, 10800, 86400))}}
	}
}

func (w *world) drawExternalIPs(s *service) {
	s.object.Spec.ExternalIPs = some(w.dice, w.between(1, 3),
		"203.0.113.1", "203.0.113.2", nodeIPv4, "2001:db8:113::1", "2001:db8:113::2", nodeIPv6)
}

// drawExternal draws how the Service is reached from outside. It is called
// again after a change of what the policy depends on.
func (w *world) drawExternal(s *service) {
	spec := &s.object.Spec
	outside := spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer
	spec.ExternalTrafficPolicy = ""
	if outside || len(spec.ExternalIPs) > 0 {
		spec.ExternalTrafficPolicy = pick(w.dice, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	}
	spec.AllocateLoadBalancerNodePorts = nil
	nodePorts := outside
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		nodePorts = w.chance(80)
		spec.AllocateLoadBalancerNodePorts = new(nodePorts)
	}
	// The second half of the node ports is for changes.
	offset := pick[int32](w.dice, 0, 1000)
	for i := range spec.Ports {
		spec.Ports[i].NodePort = 0
		if nodePorts {
			spec.Ports[i].NodePort = 29000 + spec.Ports[i].Port + offset
		}
	}
	spec.HealthCheckNodePort = 0
	if spec.Type == corev1.ServiceTypeLoadBalancer && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		spec.HealthCheckNodePort = int32(32200 + s.number) //nolint:gosec // it fits
	}
}

func (w *world) drawLoadBalancer(s *service) {
	spec := &s.object.Spec
	spec.LoadBalancerSourceRanges, s.object.Status.LoadBalancer = nil, corev1.LoadBalancerStatus{}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	if w.chance(50) {
		spec.LoadBalancerSourceRanges = w.sourceRanges()
	}
	w.drawIngress(s)
}

func (w *world) sourceRanges() []string {
	return some(w.dice, w.between(1, 4), "203.0.113.0/24", "192.0.2.0/24", "10.244.0.0/16", "10.0.0.0/8", "198.51.100.7/32",
		"2001:db8::/32", "2001:db8:9::/64", "fd00:10:244::/56", pick(w.dice, "0.0.0.0/0", "::/0", "172.16.0.0/12", "fd00::/8"))
}

func (w *world) drawIngress(s *service) {
	vip, proxy := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy
	s.object.Status.LoadBalancer.Ingress = some(w.dice, w.between(0, 4),
		corev1.LoadBalancerIngress{IP: "198.18.7.1", IPMode: &vip},
		corev1.LoadBalancerIngress{IP: "198.18.7.2", IPMode: &proxy},
		corev1.LoadBalancerIngress{IP: "192.0.2.99"},
		corev1.LoadBalancerIngress{IP: "2001:db8:7::1", IPMode: &vip},
		corev1.LoadBalancerIngress{IP: "2001:db8:7::2", IPMode: &proxy},
		corev1.LoadBalancerIngress{IP: "2001:db8:2::99"},
		corev1.LoadBalancerIngress{Hostname: "lb.example.org"},
		corev1.LoadBalancerIngress{IP: pick(w.dice, append(s.object.Spec.ExternalIPs, "203.0.113.9")...)},
	)
}

// name tells a Service in messages.
func (s *service) name() string { return s.object.Namespace + "/" + s.object.Name }

// objects returns the world as the API server is to hold it, Services and
// slices by key. The key of an object that must be made anew differs.
func (w *world) objects() (services map[string]*corev1.Service, slicesByKey map[string]*discoveryv1.EndpointSlice) {
	services, slicesByKey = map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}
	for _, s := range w.services {
		if !s.gone {
			services[fmt.Sprintf("%s#%d.%d", s.name(), w.seed, s.version)] = s.object
		}
		for _, sl := range s.slices {
			slicesByKey[sl.namespace+"/"+sl.name] = sl.object(s.endpoints)
		}
	}
	for _, sl := range w.strays {
		slicesByKey[sl.namespace+"/"+sl.name] = sl.object(map[string]*discoveryv1.Endpoint{
			sl.members[0].address: {Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}})
	}
	return services, slicesByKey
}

// find returns the Service with the given name, "" where there is none.
func (w *world) find(name string) *service {
	i := slices.IndexFunc(w.services, func(s *service) bool { return s.name() == name })
	if i < 0 {
		return nil
	}
	return w.services[i]
}

func (sl *slice) object(endpoints map[string]*discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: sl.namespace, Name: sl.name, Labels: maps.Clone(sl.labels)},
		AddressType: sl.addresses, Ports: sl.ports, Endpoints: []discoveryv1.Endpoint{},
	}
	for _, m := range sl.members {
		e := endpoints[m.address].DeepCopy()
		e.Addresses = []string{m.address}
		if m.leaving {
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
		}
		out.Endpoints = append(out.Endpoints, *e)
	}
	return out
}
