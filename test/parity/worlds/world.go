package worlds

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

// The most that a world has of each kind of port; see Service.port.
const portsPerService = 4

// World is what the API server holds for a while. What kube-proxy leaves to
// chance is never drawn: two Services with one address and port, and two
// entries for one endpoint of which none wins (S 1.5 of what kube-proxy does:
// the one that is not terminating wins).
type World struct {
	Dice
	Seed     uint64
	Settings Settings
	// Audit: the agent compares, and writes nothing.
	Audit bool
	// MarkLocal: the Service of the marks has policy Local, and no endpoint on the
	// node.
	MarkLocal bool
	Node      NodeFacts
	// Guest: the node has one more address of each family.
	Guest    bool
	Services []*Service
	drawn    int // Services ever drawn
	// strays are slices that belong to no Service.
	strays []*slice
	// Log is for what was done to it, in words.
	Log []string
}

// Service is a Service with its slices. Addresses and ports follow from its
// number, so that no two Services have any in common.
type Service struct {
	number  int
	version int // raised where the API needs the object to be made anew
	Object  *corev1.Service
	Gone    bool // deleted, but its slices are still there
	slices  []*slice
	sliced  int // slices ever drawn
	hints   hints
	// endpoints are the entries by address. Slices that name one address
	// agree on it, but for an extra entry that marks it as terminating.
	endpoints map[string]*discoveryv1.Endpoint
}

// slice is an EndpointSlice of a Service.
type slice struct {
	name      string
	namespace string
	labels    map[string]string
	addresses discoveryv1.AddressType
	ports     []discoveryv1.EndpointPort
	entries   []entry
}

// entry is an entry of a slice. One that is leaving marks the endpoint as
// terminating, whatever other slices contain about it.
type entry struct {
	address string
	leaving bool
}

// New draws a world for mode IPTables.
func New(seed uint64) *World {
	d := NewDice(seed)
	w := &World{Dice: d, Seed: seed, Settings: d.Settings(), Node: d.NodeFacts()}
	w.addServices(d.Between(10, 20))
	if seed%30 == 17 {
		w.addLarge()
	}
	return w
}

// NewIPVS draws a world for mode IPVS. Settings and facts of the node are those
// of the group of worlds that it belongs to, so that programs need not be started
// for each of them, which takes long where such a kernel is emulated.
func NewIPVS(seed uint64) *World {
	group := NewDice(FirstOfGroup(seed))
	d := NewDice(seed)
	w := &World{Dice: d, Seed: seed, Settings: group.ipvsSettings(), Node: group.NodeFacts()}
	w.addServices(d.Between(4, 9))
	return w
}

// groupSize is how many worlds for mode IPVS have the same settings.
const groupSize = 3

// FirstOfGroup is the seed of the first world for mode IPVS that has the same
// settings as the one with the given seed.
func FirstOfGroup(seed uint64) uint64 { return seed - seed%groupSize }

// addServices draws so many Services, and slices that belong to none.
func (w *World) addServices(n int) {
	for range n {
		w.addService()
	}
	w.strays = append(w.strays, &slice{
		name: "names", namespace: w.Services[0].Object.Namespace, addresses: discoveryv1.AddressTypeFQDN,
		labels:  map[string]string{discoveryv1.LabelServiceName: w.Services[0].Object.Name},
		ports:   []discoveryv1.EndpointPort{{Name: new("p0"), Port: new(int32(80))}},
		entries: []entry{{address: "pod.example.org"}},
	}, &slice{
		name: "stray", namespace: namespaceA, addresses: discoveryv1.AddressTypeIPv4,
		labels:  map[string]string{discoveryv1.LabelServiceName: "none"},
		ports:   []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(80))}},
		entries: []entry{{address: "10.244.1.250"}},
	})
}

func (w *World) addService() *Service {
	s := w.newService(w.drawn)
	w.drawn++
	w.Services = append(w.Services, s)
	return s
}

// addLarge adds a Service that makes the cluster a large one for kube-proxy.
func (w *World) addLarge() {
	s := w.addService()
	s.Object.Spec.Type, s.Object.Labels = corev1.ServiceTypeClusterIP, nil
	s.Object.Spec.ClusterIP, s.Object.Spec.ExternalName = "", ""
	w.drawFamilies(s)
	for len(s.Object.Spec.IPFamilies) < 2 { // large in both
		w.drawFamilies(s)
	}
	w.drawExternal(s)
	w.drawLoadBalancer(s)
	for _, addresses := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		for range 3 {
			w.addSlice(s, addresses)
			sl := s.slices[len(s.slices)-1]
			delete(sl.labels, corev1.IsHeadlessService)
			sl.ports = []discoveryv1.EndpointPort{{Name: new(s.Object.Spec.Ports[0].Name), Protocol: new(s.Object.Spec.Ports[0].Protocol), Port: new(int32(80))}}
			for i := range 400 {
				m := entry{address: fmt.Sprintf("10.245.%d.%d", len(s.slices)*2+i/200, i%200+1)}
				if addresses == discoveryv1.AddressTypeIPv6 {
					m.address = fmt.Sprintf("fd00:10:245::%x:%x", len(s.slices), i+1)
				}
				s.endpoints[m.address] = &discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}
				sl.entries = append(sl.entries, m)
			}
		}
	}
}

// Large reports whether kube-proxy takes the cluster for a large one: it counts
// the endpoints of all Services' ports. The marker has one.
func (w *World) Large(f Family) bool {
	total := 1
	for _, s := range w.Services {
		if _, left := s.Object.Labels["service.kubernetes.io/service-proxy-name"]; s.Gone || left || !s.proxied() {
			continue
		}
		for _, p := range s.Object.Spec.Ports {
			total += len(s.endpointsOf(f, p))
		}
	}
	return total > 1000
}

// endpointsOf are the endpoints of a port in any state.
func (s *Service) endpointsOf(f Family, p corev1.ServicePort) map[string]bool {
	out := map[string]bool{}
	want := map[Family]corev1.IPFamily{IPv4: corev1.IPv4Protocol, IPv6: corev1.IPv6Protocol}[f]
	if !slices.Contains(s.Object.Spec.IPFamilies, want) {
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
			for _, m := range sl.entries {
				out[fmt.Sprint(m.address, " ", *sp.Port)] = true
			}
		}
	}
	return out
}

func (w *World) newService(number int) *Service {
	s := &Service{number: number, endpoints: map[string]*discoveryv1.Endpoint{}, hints: w.hintKind()}
	s.Object = &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: Pick(w.Dice, namespaceA, namespaceB), Name: fmt.Sprintf("svc%d", number),
	}}
	if w.Chance(5) {
		s.Object.Name += "-" + strings.Repeat("x", 62-len(s.Object.Name)) // the longest name
	}
	w.drawKind(s)
	for _, addresses := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		n := Pick(w.Dice, 0, 1, 1, 1, 2, 3)
		if len(s.Object.Spec.IPFamilies) == 1 && w.Chance(70) && (s.Object.Spec.IPFamilies[0] == corev1.IPv4Protocol) != (addresses == discoveryv1.AddressTypeIPv4) {
			n = 0
		}
		for range n {
			w.addSlice(s, addresses)
		}
	}
	return s
}

// drawKind draws everything of a Service but its name.
func (w *World) drawKind(s *Service) {
	spec := &corev1.ServiceSpec{Type: Pick(w.Dice,
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeClusterIP, corev1.ServiceTypeClusterIP,
		corev1.ServiceTypeNodePort, corev1.ServiceTypeNodePort, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer)}
	s.Object.Spec, s.Object.Status = *spec, corev1.ServiceStatus{}
	spec = &s.Object.Spec
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
	spec.PublishNotReadyAddresses = w.Chance(10)
	w.drawInternal(s)
	w.drawAffinity(s)
	if w.Chance(30) {
		w.drawExternalIPs(s)
	}
	w.drawExternal(s)
	w.drawLoadBalancer(s)
	if w.Chance(4) {
		s.Object.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": Pick(w.Dice, "", "other")}
	}
}

// proxied reports whether a Service has an address of its own.
func (s *Service) proxied() bool {
	return s.Object.Spec.Type != corev1.ServiceTypeExternalName && s.Object.Spec.ClusterIP != corev1.ClusterIPNone
}

func (w *World) drawFamilies(s *Service) {
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	spec := &s.Object.Spec
	spec.IPFamilies = Pick(w.Dice, []corev1.IPFamily{v4}, []corev1.IPFamily{v6},
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
func (s *Service) port(i int) int32 { return int32(1000 + s.number*portsPerService + i) } //nolint:gosec // it fits

func (w *World) drawPorts(s *Service) {
	protocol := func() corev1.Protocol {
		return Pick(w.Dice, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
	}
	spec := &s.Object.Spec
	spec.Ports = nil
	n := w.Between(1, 3)
	for i := range n {
		p := corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Protocol: protocol(), Port: s.port(i)}
		if n == 1 && w.Chance(50) {
			p.Name = ""
		}
		spec.Ports = append(spec.Ports, p)
	}
	if n == 2 && w.Chance(40) { // one number over two protocols, as DNS has
		spec.Ports[0].Protocol, spec.Ports[1].Protocol = corev1.ProtocolUDP, corev1.ProtocolTCP
		spec.Ports[1].Port = spec.Ports[0].Port
	}
}

func (w *World) drawInternal(s *Service) {
	s.Object.Spec.InternalTrafficPolicy = new(Pick(w.Dice, corev1.ServiceInternalTrafficPolicyCluster,
		corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal))
}

func (w *World) drawAffinity(s *Service) {
	spec := &s.Object.Spec
	spec.SessionAffinity, spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	if w.Chance(30) {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{
			TimeoutSeconds: new(Pick[int32](w.Dice, 1, 10, 600, 10800, 86400))}}
	}
}

func (w *World) drawExternalIPs(s *Service) {
	s.Object.Spec.ExternalIPs = some(w.Dice, w.Between(1, 3),
		"203.0.113.1", "203.0.113.2", nodeIPv4, "2001:db8:113::1", "2001:db8:113::2", nodeIPv6)
}

// drawExternal draws how the Service is reached from outside. It is called
// again after a change of what the policy depends on.
func (w *World) drawExternal(s *Service) {
	spec := &s.Object.Spec
	outside := spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer
	spec.ExternalTrafficPolicy = ""
	if outside || len(spec.ExternalIPs) > 0 {
		spec.ExternalTrafficPolicy = Pick(w.Dice, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	}
	spec.AllocateLoadBalancerNodePorts = nil
	nodePorts := outside
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		nodePorts = w.Chance(80)
		spec.AllocateLoadBalancerNodePorts = new(nodePorts)
	}
	// The second half of the node ports is for changes.
	offset := Pick[int32](w.Dice, 0, 1000)
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

func (w *World) drawLoadBalancer(s *Service) {
	spec := &s.Object.Spec
	spec.LoadBalancerSourceRanges, s.Object.Status.LoadBalancer = nil, corev1.LoadBalancerStatus{}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	if w.Chance(50) {
		spec.LoadBalancerSourceRanges = w.sourceRanges()
	}
	w.drawIngress(s)
}

func (w *World) sourceRanges() []string {
	return some(w.Dice, w.Between(1, 4), "203.0.113.0/24", "192.0.2.0/24", "10.244.0.0/16", "10.0.0.0/8", "198.51.100.7/32",
		"2001:db8::/32", "2001:db8:9::/64", "fd00:10:244::/56", Pick(w.Dice, "0.0.0.0/0", "::/0", "172.16.0.0/12", "fd00::/8"))
}

func (w *World) drawIngress(s *Service) {
	vip, proxy := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy
	s.Object.Status.LoadBalancer.Ingress = some(w.Dice, w.Between(0, 4),
		corev1.LoadBalancerIngress{IP: "198.18.7.1", IPMode: &vip},
		corev1.LoadBalancerIngress{IP: "198.18.7.2", IPMode: &proxy},
		corev1.LoadBalancerIngress{IP: "192.0.2.99"},
		corev1.LoadBalancerIngress{IP: "2001:db8:7::1", IPMode: &vip},
		corev1.LoadBalancerIngress{IP: "2001:db8:7::2", IPMode: &proxy},
		corev1.LoadBalancerIngress{IP: "2001:db8:2::99"},
		corev1.LoadBalancerIngress{Hostname: "lb.example.org"},
		corev1.LoadBalancerIngress{IP: Pick(w.Dice, append(s.Object.Spec.ExternalIPs, "203.0.113.9")...)},
	)
}

// Name names a Service in messages.
func (s *Service) Name() string { return s.Object.Namespace + "/" + s.Object.Name }

// Objects returns the world as the API server is to hold it, Services and
// slices by key. The key of an object that must be made anew differs.
func (w *World) Objects() (services map[string]*corev1.Service, slicesByKey map[string]*discoveryv1.EndpointSlice) {
	services, slicesByKey = map[string]*corev1.Service{}, map[string]*discoveryv1.EndpointSlice{}
	for _, s := range w.Services {
		if !s.Gone {
			services[fmt.Sprintf("%s#%d.%d", s.Name(), w.Seed, s.version)] = s.Object
		}
		for _, sl := range s.slices {
			slicesByKey[sl.namespace+"/"+sl.name] = sl.object(s.endpoints)
		}
	}
	for _, sl := range w.strays {
		slicesByKey[sl.namespace+"/"+sl.name] = sl.object(map[string]*discoveryv1.Endpoint{
			sl.entries[0].address: {Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}})
	}
	return services, slicesByKey
}

// Find returns the Service with the given name, nil where there is none.
func (w *World) Find(name string) *Service {
	i := slices.IndexFunc(w.Services, func(s *Service) bool { return s.Name() == name })
	if i < 0 {
		return nil
	}
	return w.Services[i]
}

func (sl *slice) object(endpoints map[string]*discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: sl.namespace, Name: sl.name, Labels: maps.Clone(sl.labels)},
		AddressType: sl.addresses, Ports: sl.ports, Endpoints: []discoveryv1.Endpoint{},
	}
	for _, m := range sl.entries {
		e := endpoints[m.address].DeepCopy()
		e.Addresses = []string{m.address}
		if m.leaving {
			e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
		}
		out.Endpoints = append(out.Endpoints, *e)
	}
	return out
}
