package scenarios

import "strings"

// clusterIPRows are about cluster IPs under policy Cluster.
func clusterIPRows() []row {
	one := []Service{{CIP: "172.30.0.41", Endpoints: []string{"L 10.180.0.1"}}}
	two := []Service{{
		CIP: "172.30.0.42", Ports: []string{"p80:80", "https:443=8443"},
		Endpoints: []string{"L 10.180.0.1", "R 10.180.2.1"},
	}}
	return []row{
		{n: 1, given: "a pod and a local endpoint", svcs: one, when: []when{{POD, "172.30.0.41:80", "10.180.0.1 -M"}}},
		{n: 2, given: "an endpoint reaches itself", svcs: one, when: []when{{"10.180.0.1", "172.30.0.41:80", "10.180.0.1 +M"}}},
		{n: 3, given: "a local and a remote endpoint", svcs: two, when: []when{{POD, "172.30.0.42:80", "10.180.0.1 10.180.2.1 -M"}}},
		{n: 4, given: "a named port", svcs: two, when: []when{{POD, "172.30.0.42:443", "10.180.0.1:8443 10.180.2.1:8443 -M"}}},
		{
			n: 5, given: "one port of three protocols",
			svcs: []Service{{
				CIP: "172.30.0.43", Ports: []string{"dns-tcp:53=5353", "dns-udp:53/UDP", "dns-sctp:53/SCTP"},
				Endpoints: []string{"L 10.180.0.1", "R 10.180.2.1"},
			}},
			when: []when{
				{POD, "tcp/172.30.0.43:53", "10.180.0.1:5353 10.180.2.1:5353 -M"},
				{POD, "udp/172.30.0.43:53", "10.180.0.1:53 10.180.2.1:53 -M"},
				{POD, "sctp/172.30.0.43:53", "10.180.0.1:53 10.180.2.1:53 -M"},
			},
		},
		{n: 6, given: "another protocol", svcs: one, when: []when{{POD, "udp/172.30.0.41:80", "PASS"}}},
		{n: 7, given: "another port", svcs: one, when: []when{{POD, "172.30.0.41:443", "PASS"}}},
		{n: 8, given: "no Service at all", svcs: one, when: []when{{POD, "172.30.0.50:80", "PASS"}}},
		{n: 9, given: "clients that are no pods", svcs: two, when: []when{{"NODE EXT", "172.30.0.42:80", "10.180.0.1 10.180.2.1 +M"}}},
		{
			n: 10, given: "no way to recognize pods", svcs: two, settings: noDetector,
			when: []when{{"NODE EXT", "172.30.0.42:80", "10.180.0.1 10.180.2.1 -M"}},
		},
		{
			n: 11, given: "masquerade all", svcs: two, settings: masqueradeAll,
			when: []when{{POD, "172.30.0.42:80", "10.180.0.1 10.180.2.1 +M"}},
		},
		{n: 12, given: "no endpoints", svcs: []Service{{CIP: "172.30.0.41"}}, when: []when{{"POD NODE EXT", "172.30.0.41:80", "REJECT"}}},
		{
			n: 13, given: "a client has the address of a remote endpoint",
			svcs: []Service{{CIP: "172.30.0.42", Endpoints: []string{"L 10.180.0.1", "R 10.180.1.1"}}},
			when: []when{{"10.180.1.1", "172.30.0.42:80", "10.180.0.1 10.180.1.1+M -M"}},
		},
		{
			n: 14, given: "a pod of the host's network", svcs: []Service{{CIP: "172.30.0.41", Ports: []string{"p80:80=8080"}, Endpoints: []string{"L 192.168.0.2"}}},
			when: []when{{NODE, "172.30.0.41:80", "192.168.0.2:8080 +M"}},
		},
		{
			n: 15, given: "an endpoint that is not ready, serving, not terminating", svcs: []Service{{CIP: "172.30.0.41", Endpoints: []string{"L 10.180.0.1 S"}}},
			when: []when{{POD, "172.30.0.41:80", "REJECT"}},
		},
		{
			n: 16, given: "an endpoint that is ready, not serving, terminating", svcs: []Service{{CIP: "172.30.0.41", Endpoints: []string{"L 10.180.0.1 P"}}},
			when: []when{{POD, "172.30.0.41:80", "10.180.0.1 -M"}},
		},
	}
}

// internalLocalRows are about internal traffic policy Local.
func internalLocalRows() []row {
	const cip, np = "172.30.0.43:80", "192.168.0.2:3003"
	full := func(eps ...string) []Service {
		return []Service{{CIP: "172.30.0.43", VIPs: []string{"9.10.11.12"}, NP: 3003, ITPLocal: true, Endpoints: eps}}
	}
	plain := func(eps ...string) []Service { return []Service{{CIP: "172.30.0.43", ITPLocal: true, Endpoints: eps}} }
	l, r := "L 10.180.0.3", "R 10.180.1.3"
	etpLocal := full(r)
	etpLocal[0].ETPLocal = true
	gone := func(w *world) {
		w.removeSlices()
		w.sees(POD, cip, "REJECT")
	}
	return []row{
		{n: 46, given: "both, a pod", svcs: full(l, r), when: []when{{POD, cip, "10.180.0.3 -M"}}},
		{n: 47, given: "both, others", svcs: full(l, r), when: []when{{"NODE EXT", cip, "10.180.0.3 +M"}}},
		{
			n: 48, given: "both, from outside", svcs: full(l, r),
			when: []when{{"POD NODE EXT", "9.10.11.12:80 " + np, "10.180.0.3 10.180.1.3 +M"}},
		},
		{n: 49, given: "both, by localhost", svcs: full(l, r), when: []when{{LO, "127.0.0.1:3003", "10.180.0.3 10.180.1.3 +M"}}},
		{
			n: 50, given: "two local ones, a remote one", svcs: plain(l, "L 10.180.0.4", r),
			when: []when{{POD, cip, "10.180.0.3 10.180.0.4 -M"}},
		},
		{n: 51, given: "a remote one only", svcs: plain(r), when: []when{{"POD NODE EXT", cip, "DROP"}}},
		{n: 52, given: "the slice is deleted", svcs: plain(r), when: []when{{POD, cip, "DROP"}}, then: gone},
		{
			n: 53, given: "a remote one only, from outside", svcs: full(r),
			when: []when{{POD, cip, "DROP"}, {EXT, "9.10.11.12:80 " + np, "10.180.1.3 +M"}},
		},
		{
			n: 54, given: "a remote one only, external policy Local too", svcs: etpLocal,
			when: []when{
				{POD, cip, "DROP"},
				{POD, "9.10.11.12:80", "10.180.1.3 -M"},
				{EXT, "9.10.11.12:80", "DROP"},
				{NODE, "9.10.11.12:80", "10.180.1.3 +M"},
			},
		},
		{n: 55, given: "the local one is terminating", svcs: plain(l+" T", r), when: []when{{POD, cip, "10.180.0.3 -M"}}},
		{n: 56, given: "the local one has ended, the remote one is terminating", svcs: plain(l+" X", r+" T"), when: []when{{POD, cip, "DROP"}}},
		{n: 57, given: "masquerade all", svcs: full(l, r), settings: masqueradeAll, when: []when{{POD, cip, "10.180.0.3 +M"}}},
	}
}

// terminatingRows are about endpoints that are terminating.
func terminatingRows() []row {
	const cip, vip = "172.30.1.1:80", "1.2.3.4:80"
	lb := func(local bool, eps ...string) []Service {
		for i, ep := range eps {
			eps[i] = strings.Replace(ep, " .", " 10.0.1.", 1)
		}
		return []Service{{CIP: "172.30.1.1", VIPs: []string{"1.2.3.4"}, ETPLocal: local, Endpoints: eps}}
	}
	mixed := func() []Service { return lb(true, "L .1", "L .2", "L .3 T", "L .4 X", "R .5") }
	ending := func() []Service { return lb(true, "L .2 T", "L .3 T", "L .4 X", "R .5") }
	remote := func() []Service { return lb(true, "R .5 T") }
	gone := func(w *world) {
		w.removeSlices()
		w.sees(POD, cip, "REJECT")
		w.sees(EXT, vip, "REJECT")
	}
	rows := []row{
		{n: 58, given: "policy Local, all states, a pod", svcs: mixed(), when: []when{{POD, cip, "10.0.1.1 10.0.1.2 10.0.1.5 -M"}}},
		{n: 59, given: "policy Local, all states, from outside", svcs: mixed(), when: []when{{EXT, vip, "10.0.1.1 10.0.1.2 -M"}}},
		{n: 60, given: "policy Local, no local one ready, a pod", svcs: ending(), when: []when{{POD, cip, "10.0.1.5 -M"}}},
		{n: 61, given: "policy Local, no local one ready, from outside", svcs: ending(), when: []when{{EXT, vip, "10.0.1.2 10.0.1.3 -M"}}},
		{n: 62, given: "policy Local, only a remote one terminating, a pod", svcs: remote(), when: []when{{POD, cip, "10.0.1.5 -M"}}},
		{n: 63, given: "policy Local, only a remote one terminating, from outside", svcs: remote(), when: []when{{EXT, vip, "DROP"}}},
		{
			n: 64, given: "policy Local, all have ended", svcs: lb(true, "L .1 X", "R .5 X"),
			when: []when{{POD, cip, "REJECT"}, {EXT, vip, "REJECT"}},
		},
		{
			n: 65, given: "policy Cluster, some ready", svcs: lb(false, "L .1", "L .2", "R .3 T", "R .4 X", "R .5"),
			when: []when{{POD, cip, "10.0.1.1 10.0.1.2 10.0.1.5 -M"}, {EXT, vip, "10.0.1.1 10.0.1.2 10.0.1.5 +M"}},
		},
		{
			n: 66, given: "policy Cluster, none ready", svcs: lb(false, "L .2 T", "L .3 T", "R .4 X", "R .5 T"),
			when: []when{{POD, cip, "10.0.1.2 10.0.1.3 10.0.1.5 -M"}, {EXT, vip, "10.0.1.2 10.0.1.3 10.0.1.5 +M"}},
		},
		{
			n: 67, given: "policy Cluster, only a remote one terminating", svcs: lb(false, "R .5 T"),
			when: []when{{POD, cip, "10.0.1.5 -M"}, {EXT, vip, "10.0.1.5 +M"}},
		},
	}
	for _, r := range rows {
		rows = append(rows, row{n: 68, given: "the slices are deleted after: " + r.given, svcs: r.svcs, when: r.when, then: gone})
	}
	return rows
}
