package parity

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// change draws one change of the world. It returns what it did, in words.
func (w *world) change() string {
	switch n := w.IntN(100); {
	case n < 6:
		return "add " + w.addService().name()
	case n < 12:
		return w.deleteService()
	case n < 16:
		return w.remakeService()
	case n < 21:
		return w.changeZone()
	case n < 24:
		w.guest = !w.guest
		return fmt.Sprintf("further addresses of the node: %t", w.guest)
	case n < 55:
		return w.changeService()
	default:
		return w.changeSlices()
	}
}

func (w *world) changeZone() string {
	w.node.zone = w.zone()
	return fmt.Sprintf("zone of the node: %q", w.node.zone)
}

// any returns a Service that exists.
func (w *world) any() *service {
	var live []*service
	for _, s := range w.services {
		if !s.gone {
			live = append(live, s)
		}
	}
	if len(live) == 0 {
		return w.addService()
	}
	return pick(w.dice, live...)
}

// deleteService deletes a Service, with its slices or before them.
func (w *world) deleteService() string {
	s := w.any()
	name := s.name()
	if w.chance(60) {
		w.services = slices.DeleteFunc(w.services, func(o *service) bool { return o == s })
		return "delete " + name + " and its slices"
	}
	s.gone = true // the slices stay behind; the Service may come back
	return "delete " + name + ", but not its slices"
}

// remakeService deletes a Service and makes another of its name.
func (w *world) remakeService() string {
	i := slices.IndexFunc(w.services, func(s *service) bool { return s.gone })
	s := w.any()
	if i >= 0 && w.chance(70) {
		s = w.services[i]
	}
	s.version++
	s.gone = false
	w.drawKind(s)
	return "make " + s.name() + " anew as " + string(s.object.Spec.Type)
}

// changeService changes a Service in place.
func (w *world) changeService() string {
	s := w.any()
	if !s.proxied() {
		return w.remakeService()
	}
	spec := &s.object.Spec
	what := ""
	switch w.IntN(11) {
	case 0:
		spec.Type = pick(w.dice, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
		w.drawExternal(s)
		w.drawLoadBalancer(s)
		what = "type " + string(spec.Type)
	case 1, 2:
		w.drawExternal(s)
		what = "external traffic policy and node ports"
	case 3:
		w.drawInternal(s)
		what = "internal traffic policy"
	case 4:
		w.drawAffinity(s)
		what = "session affinity"
	case 5:
		spec.ExternalIPs = nil
		if w.chance(70) {
			w.drawExternalIPs(s)
		}
		w.drawExternal(s)
		what = "external IPs"
	case 6:
		w.drawLoadBalancer(s)
		what = "load balancer"
	case 7:
		if spec.Type == corev1.ServiceTypeLoadBalancer {
			w.drawIngress(s)
		}
		what = "load balancer's addresses"
	case 8:
		w.drawPorts(s)
		w.drawExternal(s)
		what = "ports"
	case 9:
		s.object.Labels = nil
		if w.chance(60) {
			s.object.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
		}
		what = fmt.Sprintf("labels %v", s.object.Labels)
	case 10:
		spec.PublishNotReadyAddresses = !spec.PublishNotReadyAddresses
		what = "publishNotReadyAddresses"
	}
	return "change " + s.name() + ": " + what
}

// changeSlices changes slices of a Service.
func (w *world) changeSlices() string {
	if len(w.services) == 0 {
		return "add " + w.addService().name()
	}
	s := pick(w.dice, w.services...)
	defer s.settle()
	done := func(what string) string { return "slices of " + s.name() + ": " + what }
	if len(s.slices) == 0 || w.chance(10) {
		w.addSlice(s, pick(w.dice, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6))
		return done("one more")
	}
	sl := pick(w.dice, s.slices...)
	switch w.IntN(10) {
	case 0:
		s.slices = slices.DeleteFunc(s.slices, func(o *slice) bool { return o == sl })
		return done("one less")
	case 1:
		for range w.between(1, 4) {
			w.addMember(s, sl)
		}
		return done("more endpoints")
	case 2:
		if len(sl.members) > 0 {
			i := w.IntN(len(sl.members))
			sl.members = slices.Delete(sl.members, i, i+1)
		}
		return done("an endpoint less")
	case 3:
		for _, sl := range s.slices {
			sl.members = nil
		}
		return done("no endpoint left")
	case 4:
		for _, address := range s.addresses() {
			s.endpoints[address].Conditions = w.conditions()
		}
		return done("the state of all endpoints")
	case 5:
		s.hints = w.hintKind()
		for _, address := range s.addresses() {
			w.drawHints(s, s.endpoints[address])
		}
		return done("the hints of all endpoints")
	case 6:
		w.drawSlicePorts(s, sl)
		return done("ports")
	default:
		return done(w.changeEndpoint(s))
	}
}

// changeEndpoint draws one endpoint anew, or some of what is known of it.
func (w *world) changeEndpoint(s *service) string {
	all := s.addresses()
	if len(all) == 0 {
		w.addMember(s, s.slices[0])
		return "an endpoint"
	}
	address := pick(w.dice, all...)
	e := s.endpoints[address]
	switch w.IntN(4) {
	case 0:
		s.endpoints[address] = w.endpoint(s)
		return "all that is known of " + address
	case 1:
		w.drawHints(s, e)
		return "the hints of " + address
	default:
		e.Conditions = w.conditions()
		return "the state of " + address
	}
}

// addresses are those of a Service's endpoints, in an order that a seed repeats.
func (s *service) addresses() []string {
	var out []string
	for _, sl := range s.slices {
		for _, m := range sl.members {
			if !slices.Contains(out, m.address) {
				out = append(out, m.address)
			}
		}
	}
	return out
}
