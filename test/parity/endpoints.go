package parity

import (
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// hints is how the endpoints of a Service carry topology hints.
type hints int

const (
	noHints hints = iota
	zoneHints
	nodeHints
	bothHints
	anyHints // each endpoint on its own
)

func (w *world) hintKind() hints {
	return pick(w.dice, noHints, noHints, zoneHints, zoneHints, nodeHints, bothHints, anyHints)
}

// addSlice draws a slice of a Service.
func (w *world) addSlice(s *service, addresses discoveryv1.AddressType) {
	s.sliced++
	sl := &slice{
		// The family cannot be changed, so it is in the name.
		name:      fmt.Sprintf("%.40s-%s-%d", s.object.Name, strings.ToLower(string(addresses)), s.sliced),
		namespace: s.object.Namespace, addresses: addresses,
		labels: map[string]string{discoveryv1.LabelServiceName: s.object.Name},
	}
	switch {
	case w.chance(30):
		sl.labels[discoveryv1.LabelManagedBy] = "someone.example.org"
	case w.chance(5):
		sl.labels["service.kubernetes.io/headless"] = ""
	}
	w.drawSlicePorts(s, sl)
	s.slices = append(s.slices, sl)
	for range pick(w.dice, 0, 1, 1, 2, 3, 4) {
		w.addMember(s, sl)
	}
}

// drawSlicePorts draws the ports of a slice: mostly those of the Service.
func (w *world) drawSlicePorts(s *service, sl *slice) {
	sl.ports = []discoveryv1.EndpointPort{}
	for _, p := range s.object.Spec.Ports {
		if w.chance(8) {
			continue
		}
		port := discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol), Port: new(p.Port + 7000)}
		switch {
		case w.chance(4):
			port.Port = nil
		case w.chance(10):
			port.Port = new(p.Port + 17000)
		}
		sl.ports = append(sl.ports, port)
	}
	if w.chance(10) {
		sl.ports = append(sl.ports, discoveryv1.EndpointPort{Name: new("unheard-of"), Port: new(int32(99))})
	}
}

// addMember draws an entry of a slice: a new endpoint, or one that another
// slice has as well.
func (w *world) addMember(s *service, sl *slice) {
	m := member{address: fmt.Sprintf("10.244.%d.%d", pick(w.dice, 1, 2, 50), w.between(2, 30))}
	if sl.addresses == discoveryv1.AddressTypeIPv6 {
		m.address = fmt.Sprintf("fd00:10:244:%d::%x", pick(w.dice, 1, 2, 50), w.between(2, 30))
	}
	if slices.ContainsFunc(sl.members, func(o member) bool { return o.address == m.address }) {
		return
	}
	if e := s.endpoints[m.address]; e == nil {
		s.endpoints[m.address] = w.endpoint(s)
	} else if !isTrue(e.Conditions.Terminating) {
		m.leaving = w.chance(50) && s.named(m.address)
	}
	sl.members = append(sl.members, m)
}

// named tells whether a slice has an entry for the address that is not leaving.
func (s *service) named(address string) bool {
	return slices.ContainsFunc(s.slices, func(sl *slice) bool {
		return slices.Contains(sl.members, member{address: address})
	})
}

func (w *world) endpoint(s *service) *discoveryv1.Endpoint {
	e := &discoveryv1.Endpoint{Conditions: w.conditions()}
	e.NodeName = pick(w.dice, new(nodeName), new(nodeName), new("node-1"), new("node-2"), new("nowhere"), nil)
	w.drawHints(s, e)
	return e
}

func (w *world) conditions() discoveryv1.EndpointConditions {
	state := func() *bool { return pick(w.dice, nil, new(true), new(false)) }
	switch n := w.IntN(10); {
	case n < 5:
		return discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}
	case n < 7:
		return discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	default:
		return discoveryv1.EndpointConditions{Ready: state(), Serving: state(), Terminating: state()}
	}
}

func (w *world) drawHints(s *service, e *discoveryv1.Endpoint) {
	e.Hints = nil
	kind := s.hints
	if kind == anyHints {
		kind = pick(w.dice, noHints, zoneHints, nodeHints, bothHints)
	}
	if kind == noHints {
		return
	}
	e.Hints = &discoveryv1.EndpointHints{}
	if kind != nodeHints {
		for _, zone := range some(w.dice, pick(w.dice, 1, 1, 2), "zone-a", "zone-a", "zone-b") {
			if !slices.Contains(e.Hints.ForZones, discoveryv1.ForZone{Name: zone}) {
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: zone})
			}
		}
	}
	if kind != zoneHints {
		for _, node := range some(w.dice, pick(w.dice, 1, 1, 2), nodeName, "node-1", "node-2") {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: node})
		}
	}
}

// settle restores, after a change, that entries of one address agree: none is
// extra that says of a terminating endpoint that it terminates.
func (s *service) settle() {
	for _, sl := range s.slices {
		for i, m := range sl.members {
			if m.leaving && (isTrue(s.endpoints[m.address].Conditions.Terminating) || !s.named(m.address)) {
				sl.members[i].leaving = false
			}
		}
	}
	for address := range s.endpoints {
		if !slices.ContainsFunc(s.slices, func(sl *slice) bool {
			return slices.ContainsFunc(sl.members, func(m member) bool { return m.address == address })
		}) {
			delete(s.endpoints, address)
		}
	}
}

func isTrue(b *bool) bool { return b != nil && *b }
