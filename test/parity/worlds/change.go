package worlds

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Change draws one change of the world. It returns what it did, in words.
func (w *World) Change() string {
	switch n := w.IntN(100); {
	case n < 6:
		return "add " + w.addService().Name()
	case n < 12:
		return w.deleteService()
	case n < 16:
		return w.remakeService()
	case n < 21:
		return w.ChangeZone()
	case n < 24:
		w.Guest = !w.Guest
		return fmt.Sprintf("further addresses of the node: %t", w.Guest)
	case n < 55:
		return w.changeService()
	default:
		return w.changeSlices()
	}
}

// ChangeZone gives the node a zone, or none.
func (w *World) ChangeZone() string {
	w.Node.zone = w.zone()
	return fmt.Sprintf("zone of the node: %q", w.Node.zone)
}

// any returns a Service that exists.
func (w *World) any() *Service {
	var live []*Service
	for _, s := range w.Services {
		if !s.Gone {
			live = append(live, s)
		}
	}
	if len(live) == 0 {
		return w.addService()
	}
	return Pick(w.Dice, live...)
}

// deleteService deletes a Service, with its slices or before them.
func (w *World) deleteService() string {
	s := w.any()
	name := s.Name()
	if w.Chance(60) {
		w.Services = slices.DeleteFunc(w.Services, func(o *Service) bool { return o == s })
		return "delete " + name + " and its slices"
	}
	s.Gone = true // the slices stay behind; the Service may come back
	return "delete " + name + ", but not its slices"
}

// remakeService deletes a Service and makes another of its name.
func (w *World) remakeService() string {
	i := slices.IndexFunc(w.Services, func(s *Service) bool { return s.Gone })
	s := w.any()
	if i >= 0 && w.Chance(70) {
		s = w.Services[i]
	}
	s.version++
	s.Gone = false
	w.drawKind(s)
	return "make " + s.Name() + " anew as " + string(s.Object.Spec.Type)
}

// changeService changes a Service in place.
func (w *World) changeService() string {
	s := w.any()
	if !s.proxied() {
		return w.remakeService()
	}
	spec := &s.Object.Spec
	what := ""
	switch w.IntN(11) {
	case 0:
		spec.Type = Pick(w.Dice, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
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
		if w.Chance(70) {
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
		s.Object.Labels = nil
		if w.Chance(60) {
			s.Object.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
		}
		what = fmt.Sprintf("labels %v", s.Object.Labels)
	case 10:
		spec.PublishNotReadyAddresses = !spec.PublishNotReadyAddresses
		what = "publishNotReadyAddresses"
	}
	return "change " + s.Name() + ": " + what
}

// changeSlices changes slices of a Service.
func (w *World) changeSlices() string {
	if len(w.Services) == 0 {
		return "add " + w.addService().Name()
	}
	s := Pick(w.Dice, w.Services...)
	defer s.settle()
	done := func(what string) string { return "slices of " + s.Name() + ": " + what }
	if len(s.slices) == 0 || w.Chance(10) {
		w.addSlice(s, Pick(w.Dice, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6))
		return done("one more")
	}
	sl := Pick(w.Dice, s.slices...)
	switch w.IntN(10) {
	case 0:
		s.slices = slices.DeleteFunc(s.slices, func(o *slice) bool { return o == sl })
		return done("one less")
	case 1:
		for range w.Between(1, 4) {
			w.addEntry(s, sl)
		}
		return done("more endpoints")
	case 2:
		if len(sl.entries) > 0 {
			i := w.IntN(len(sl.entries))
			sl.entries = slices.Delete(sl.entries, i, i+1)
		}
		return done("an endpoint less")
	case 3:
		for _, sl := range s.slices {
			sl.entries = nil
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
func (w *World) changeEndpoint(s *Service) string {
	all := s.addresses()
	if len(all) == 0 {
		w.addEntry(s, s.slices[0])
		return "an endpoint"
	}
	address := Pick(w.Dice, all...)
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
func (s *Service) addresses() []string {
	var out []string
	for _, sl := range s.slices {
		for _, m := range sl.entries {
			if !slices.Contains(out, m.address) {
				out = append(out, m.address)
			}
		}
	}
	return out
}
