package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

func TestDestinations(t *testing.T) {
	ip := netip.MustParseAddr
	svc := &Service{
		ClusterIP: ip("10.0.0.1"), ExternalIPs: []netip.Addr{ip("192.0.2.1"), ip("192.0.2.2")}, LoadBalancerIPs: []netip.Addr{ip("192.0.2.1")},
		ExternalLocal: true,
		Ports: []Port{
			{Port: 80, NodePort: 30080, Lost: []netip.Addr{ip("192.0.2.2")}},
			{Port: 443},
		},
	}
	var got []string
	for d := range svc.Destinations() {
		got = append(got, fmt.Sprint(d.Kind, " ", d.AddrPort(), " of ", d.Port.Port, " local ", d.Local, " repeated ", d.Repeated))
	}
	want := []string{
		"ClusterIP 10.0.0.1:80 of 80 local false repeated false",
		"ExternalIP 192.0.2.1:80 of 80 local true repeated false",
		"LoadBalancerIP 192.0.2.1:80 of 80 local true repeated true",
		"NodePort invalid AddrPort of 80 local true repeated false",
		"ClusterIP 10.0.0.1:443 of 443 local false repeated false",
		"ExternalIP 192.0.2.1:443 of 443 local true repeated false",
		"ExternalIP 192.0.2.2:443 of 443 local true repeated false",
		"LoadBalancerIP 192.0.2.1:443 of 443 local true repeated true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for d := range svc.DestinationsOf(&svc.Ports[1]) {
		if d.Port != &svc.Ports[1] {
			t.Errorf("a destination of port %d among those of port 443", d.Port.Port)
		}
		break
	}
	for d := range (*Service)(nil).Destinations() {
		t.Errorf("no Service has %v", d)
	}
	if got := svc.Addresses(); len(got) != 3 {
		t.Errorf("addresses %v, want each of the three once", got)
	}
}
