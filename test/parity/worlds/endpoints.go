package worlds

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

func (w *World) hintKind() hints {
	return Pick(w.Dice, noHints, noHints, zoneHints, zoneHints, nodeHints, bothHints, anyHints)
}

// addSlice draws a slice of a Service.
func (w *World) addSlice(s *Service, addresses discoveryv1.AddressType) {
	s.sliced++
	sl := &slice{
		// The family cannot be changed, so it is in the name.
		name:      fmt.Sprintf("%.40s-%s-%d", s.Object.Name, strings.ToLower(string(addresses)), s.sliced),
		namespace: s.Object.Namespace, addresses: addresses,
		labels: map[string]string{discoveryv1.LabelServiceName: s.Object.Name},
	}
	switch {
	case w.Chance(30):
		sl.labels[discoveryv1.LabelManagedBy] = "someone.example.org"
	case w.Chance(5):
		sl.labels["service.kubernetes.io/headless"] = ""
	}
	w.drawSlicePorts(s, sl)
	s.slices = append(s.slices, sl)
	for range Pick(w.Dice, 0, 1, 1, 2, 3, 4) {
		w.addEntry(s, sl)
	}
}

// drawSlicePorts draws the ports of a slice: mostly those of the Service.
func (w *World) drawSlicePorts(s *Service, sl *slice) {
	sl.ports = []discoveryv1.EndpointPort{}
	for _, p := range s.Object.Spec.Ports {
		if w.Chance(8) {
			continue
		}
		port := discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol), Port: new(p.Port + 7000)}
		switch {
		case w.Chance(4):
			port.Port = nil
		case w.Chance(10):
			port.Port = new(p.Port + 17000)
		}
		sl.ports = append(sl.ports, port)
	}
	if w.Chance(10) {
		sl.ports = append(sl.ports, discoveryv1.EndpointPort{Name: new("unheard-of"), Port: new(int32(99))})
	}
}

// addEntry draws an entry of a slice: a new endpoint, or one that another
// slice has as well.
func (w *World) addEntry(s *Service, sl *slice) {
	m := entry{address: fmt.Sprintf("10.244.%d.%d", Pick(w.Dice, 1, 2, 50), w.Between(2, 30))}
	if sl.addresses == discoveryv1.AddressTypeIPv6 {
		m.address = fmt.Sprintf("fd00:10:244:%d::%x", Pick(w.Dice, 1, 2, 50), w.Between(2, 30))
	}
	if slices.ContainsFunc(sl.entries, func(o entry) bool { return o.address == m.address }) {
		return
	}
	if e := s.endpoints[m.address]; e == nil {
		s.endpoints[m.address] = w.endpoint(s)
	} else if !isTrue(e.Conditions.Terminating) {
		m.leaving = w.Chance(50) && s.named(m.address)
	}
	sl.entries = append(sl.entries, m)
}

// named reports whether a slice has an entry for the address that is not leaving.
func (s *Service) named(address string) bool {
	return slices.ContainsFunc(s.slices, func(sl *slice) bool {
		return slices.Contains(sl.entries, entry{address: address})
	})
}

func (w *World) endpoint(s *Service) *discoveryv1.Endpoint {
	e := &discoveryv1.Endpoint{Conditions: w.conditions()}
	e.NodeName = Pick(w.Dice, new(NodeName), new(NodeName), new("node-1"), new("node-2"), new("nowhere"), nil)
	w.drawHints(s, e)
	return e
}

func (w *World) conditions() discoveryv1.EndpointConditions {
	state := func() *bool { return Pick(w.Dice, nil, new(true), new(false)) }
	switch n := w.IntN(10); {
	case n < 5:
		return discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}
	case n < 7:
		return discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	default:
		return discoveryv1.EndpointConditions{Ready: state(), Serving: state(), Terminating: state()}
	}
}

func (w *World) drawHints(s *Service, e *discoveryv1.Endpoint) {
	e.Hints = nil
	kind := s.hints
	if kind == anyHints {
		kind = Pick(w.Dice, noHints, zoneHints, nodeHints, bothHints)
	}
	if kind == noHints {
		return
	}
	e.Hints = &discoveryv1.EndpointHints{}
	if kind != nodeHints {
		for _, zone := range some(w.Dice, Pick(w.Dice, 1, 1, 2), "zone-a", "zone-a", "zone-b") {
			if !slices.Contains(e.Hints.ForZones, discoveryv1.ForZone{Name: zone}) {
				e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: zone})
			}
		}
	}
	if kind != zoneHints {
		for _, node := range some(w.Dice, Pick(w.Dice, 1, 1, 2), NodeName, "node-1", "node-2") {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: node})
		}
	}
}

// settle restores, after a change, that entries of one address agree: none is
// extra if its endpoint is terminating anyway.
func (s *Service) settle() {
	for _, sl := range s.slices {
		for i, m := range sl.entries {
			if m.leaving && (isTrue(s.endpoints[m.address].Conditions.Terminating) || !s.named(m.address)) {
				sl.entries[i].leaving = false
			}
		}
	}
	for address := range s.endpoints {
		if !slices.ContainsFunc(s.slices, func(sl *slice) bool {
			return slices.ContainsFunc(sl.entries, func(m entry) bool { return m.address == address })
		}) {
			delete(s.endpoints, address)
		}
	}
}

func isTrue(b *bool) bool { return b != nil && *b }
