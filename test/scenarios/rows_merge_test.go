package scenarios

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// topologyRows are about hints. The node is in zone-a unless stated otherwise.
func topologyRows() []row {
	const cip = "172.30.0.41:80"
	plain := func(eps ...string) []Service {
		for i, ep := range eps {
			eps[i] = strings.Replace(ep, " .", " 10.1.2.", 1)
		}
		return []Service{{CIP: "172.30.0.41", Endpoints: eps}}
	}
	in := func(zone string) func(*world) {
		return func(w *world) { w.Node = node(zone, addresses4[:1]) }
	}
	named := func(name string) func(*world) {
		return func(w *world) { w.Node.Name = name }
	}
	to := func(list ...int) []when {
		var eps []string
		for _, n := range list {
			eps = append(eps, fmt.Sprintf("10.1.2.%d", n))
		}
		return []when{{POD, cip, strings.Join(eps, " ") + " -M"}}
	}
	zones := func() []string {
		return []string{"R .3 zone=zone-a", "R .4 zone=zone-b", "R .5 zone=zone-c", "R .6 zone=zone-a"}
	}
	nodes := func() []string {
		return []string{
			"R .3 zone=zone-a node=node-1", "R .4 zone=zone-b node=node-2",
			"R .5 zone=zone-c node=node-3", "R .6 zone=zone-a node=node-4",
		}
	}
	withPort := func(itp bool) []Service {
		s := plain("L .3 zone=zone-a", "L .4 zone=zone-b", "R .5 zone=zone-c", "R .6 zone=zone-a")
		s[0].NP, s[0].ETPLocal, s[0].ITPLocal = 3001, !itp, itp
		return s
	}
	// reachable checks that exactly these endpoints have a chain.
	reachable := func(list ...int) func(*world) {
		return func(w *world) {
			if w.ipvs != nil || w.nft != nil || w.proxy != nil {
				return
			}
			var have []int
			for n := range 10 {
				if strings.Contains(w.save(), w.tr(fmt.Sprintf("--to-destination 10.1.2.%d:80", n))) {
					have = append(have, n)
				}
			}
			if !slices.Equal(have, list) {
				w.Errorf("endpoints with a chain: %v, want %v", have, list)
			}
		}
	}
	noHint, neither := zones(), nodes()
	noHint[2], neither[1] = "R .5", "R .4"
	return []row{
		{n: 90, given: "the node's zone", svcs: plain(zones()...), when: to(3, 6)},
		{
			n: 91, given: "external policy Local", svcs: withPort(false),
			when: append(to(3, 6), when{EXT, "192.168.0.2:3001", "10.1.2.3 10.1.2.4 -M"}), then: reachable(3, 4, 6),
		},
		{
			n: 92, given: "internal policy Local", svcs: withPort(true),
			when: append(to(3, 4), when{EXT, "192.168.0.2:3001", "10.1.2.3 10.1.2.6 +M"}), then: reachable(3, 4, 6),
		},
		{n: 93, given: "the node has no zone", setup: in(""), svcs: plain("R .3 zone=zone-a"), when: to(3)},
		{
			n: 93, given: "the node has an empty zone", svcs: plain("R .3 zone=zone-a"), when: to(3),
			setup: func(w *world) { w.Node.Labels = map[string]string{corev1.LabelTopologyZone: ""} },
		},
		{n: 94, given: "nothing for the node's zone", setup: in("zone-b"), svcs: plain("R .3 zone=zone-a"), when: to(3)},
		{
			n: 95, given: "one in the zone is not ready",
			svcs: plain("R .3 zone=zone-a", "R .4 zone=zone-b", "R .5 zone=zone-c", "R .6 N zone=zone-a"), when: to(3),
		},
		{
			n: 96, given: "none in the zone is ready",
			svcs: plain("R .3 N zone=zone-a", "R .4 zone=zone-b", "R .5 zone=zone-c", "R .6 N zone=zone-a"), when: to(4, 5),
		},
		{n: 97, given: "one without hint", svcs: plain(noHint...), when: to(3, 4, 5, 6)},
		{
			n: 98, given: "several zones each", setup: in("zone-c"), when: to(3, 4, 6),
			svcs: plain("R .3 zone=zone-a,zone-b,zone-c", "R .4 zone=zone-b,zone-c", "R .5 zone=zone-b,zone-d", "R .6 zone=zone-c"),
		},
		{n: 99, given: "the node itself", setup: named("node-1"), svcs: plain(nodes()...), when: to(3)},
		{n: 100, given: "one with neither hint", setup: named("node-1"), svcs: plain(neither...), when: to(3, 4, 5, 6)},
		{n: 101, given: "nothing for the node itself", setup: named("node-0"), svcs: plain(nodes()...), when: to(3, 6)},
		{
			n: 102, given: "external policy Local, hints elsewhere",
			svcs: []Service{{
				CIP: "172.30.0.41", VIPs: []string{"1.2.3.4"}, ETPLocal: true,
				Endpoints: []string{"L 10.1.2.3 zone=zone-b", "R 10.1.2.11 zone=zone-a", "R 10.1.2.12 zone=zone-b"},
			}},
			when: []when{{POD, "1.2.3.4:80", "10.1.2.11 -M"}, {NODE, "1.2.3.4:80", "10.1.2.11 +M"}, {EXT, "1.2.3.4:80", "10.1.2.3 -M"}},
		},
		{n: 103, given: "the zone has a terminating one only", svcs: plain("R .3 T zone=zone-a", "R .4 zone=zone-b"), when: to(4)},
	}
}

// mergeRows are about what several slices report of one Service, and about an
// endpoint that comes.
func mergeRows() []row {
	const cip = "172.30.0.41:80"
	plain := Service{CIP: "172.30.0.41"}
	// slices puts each list of endpoints into a slice of its own.
	slicesOf := func(edit func(int, *discoveryv1.EndpointSlice), lists ...[]string) func(*world) {
		return func(w *world) {
			for i, list := range lists {
				s := plain.slice(fmt.Sprintf("%c", 'a'+i), discoveryv1.AddressTypeIPv4)
				for _, ep := range list {
					s.Endpoints = append(s.Endpoints, endpointOf(ep))
				}
				if edit != nil {
					edit(i, s)
				}
				w.addSlices(s)
			}
		}
	}
	ready, ending, ended := []string{"R 10.1.1.1"}, []string{"R 10.1.1.1 T"}, []string{"R 10.1.1.1 X"}
	other := []string{"R 10.1.1.2"}
	only := []when{{POD, cip, "10.1.1.1 -M"}}
	two := []when{{POD, cip, "10.1.1.1 10.1.1.2 -M"}}
	return []row{
		{n: 128, given: "an endpoint is ready, then terminating", svcs: []Service{plain}, setup: slicesOf(nil, ready, ending, other), when: two},
		{n: 128, given: "an endpoint is terminating, then ready", svcs: []Service{plain}, setup: slicesOf(nil, ending, ready, other), when: two},
		{n: 129, given: "an endpoint three times", svcs: []Service{plain}, setup: slicesOf(nil, ending, ready, ended), when: only},
		{n: 129, given: "an endpoint three times in one slice", svcs: []Service{plain}, setup: slicesOf(nil, slices.Concat(ended, ending, ready)), when: only},
		{
			n: 130, given: "ports of slices without name or number", svcs: []Service{plain}, when: only,
			setup: slicesOf(func(_ int, s *discoveryv1.EndpointSlice) {
				number, zero, name := int32(99), int32(0), "p80"
				s.Ports = append(s.Ports,
					discoveryv1.EndpointPort{Port: &number}, discoveryv1.EndpointPort{Name: &name},
					discoveryv1.EndpointPort{Name: &name, Port: &zero})
			}, ready),
			then: func(w *world) { w.holds("10.1.1.1:99", false) },
		},
		{
			n: 131, given: "slices that are no one's, of no address or of another family", only4: true, svcs: []Service{plain}, when: only,
			setup: slicesOf(func(i int, s *discoveryv1.EndpointSlice) {
				switch i {
				case 1:
					s.Labels = nil
				case 2:
					s.AddressType = discoveryv1.AddressTypeFQDN
				case 3:
					s.AddressType = discoveryv1.AddressTypeIPv6
				}
			}, ready, []string{"R 10.1.1.2"}, []string{"R example.org"}, []string{"R fd00::9"}),
		},
		{
			n: 132, given: "two numbers under one port name", svcs: []Service{plain},
			setup: slicesOf(func(i int, s *discoveryv1.EndpointSlice) {
				if i == 1 {
					*s.Ports[0].Port = 8080
				}
			}, slices.Concat(ready, other), slices.Concat(ready, other)),
			when: []when{{POD, cip, "10.1.1.1:80 10.1.1.1:8080 10.1.1.2:80 10.1.1.2:8080 -M"}},
		},
		{
			n: 133, given: "leading zeros", only4: true,
			svcs: []Service{{
				CIP: "172.30.0.041", VIPs: []string{"1.2.3.004"}, XIPs: []string{"192.168.099.022"},
				Ranges: []string{"203.0.113.000/025"}, NP: 3001, Endpoints: []string{"R 10.180.00.001"},
			}},
			when: []when{
				{POD, cip, "10.180.0.1 -M"},
				{EXT, "1.2.3.4:80 192.168.99.22:80 192.168.0.2:3001", "10.180.0.1 +M"},
				{BLK, "1.2.3.4:80", "DROP"},
			},
			then: func(w *world) {
				for _, text := range []string{"-d 172.30.0.41 ", "-d 1.2.3.4 ", "-d 192.168.99.22 ", "-s 203.0.113.0/25 ", "--to-destination 10.180.0.1:80"} {
					w.holds(text, true)
				}
				for _, text := range []string{"0.041", "3.004", "099", "113.000", "00.001"} {
					w.holds(text, false)
				}
			},
		},
		{
			n: 136, given: "no endpoint, then one", svcs: []Service{plain}, when: []when{{POD, cip, "REJECT"}},
			then: func(w *world) {
				w.holds("KUBE-SVC-", false)
				slicesOf(nil, ready)(w)
				w.Sync()
				w.sees(POD, cip, "10.1.1.1 -M")
				w.holds("REJECT", false)
				w.holds(":KUBE-SVC-", true)
			},
		},
	}
}
