package userspace

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var (
	clusterIP = netip.MustParseAddr("10.96.0.1")
	otherIP   = netip.MustParseAddr("10.96.0.2")
	nodeIP    = netip.MustParseAddr("192.0.2.1")
)

func named(name string) dataplane.ServiceName {
	return dataplane.ServiceName{Namespace: "default", Name: name}
}

func webService(ip netip.Addr, nodePort uint16) *dataplane.Service {
	return &dataplane.Service{Name: named("web"), ClusterIP: ip, Ports: []dataplane.Port{
		{Name: "http", Protocol: v1alpha1.ProtocolTCP, Port: 80, NodePort: nodePort, Cluster: addresses(2), Available: true},
		{Name: "sctp", Protocol: v1alpha1.ProtocolSCTP, Port: 80, Cluster: addresses(2), Available: true},
		{Name: "dns", Protocol: v1alpha1.ProtocolUDP, Port: 53, Cluster: addresses(2), Available: true},
	}}
}

func TestTable(t *testing.T) {
	table, start := newTable(), time.Now()
	id := serviceID{named("web"), dataplane.IPv4}
	now, gone := table.set(id, webService(clusterIP, 30080), start)
	if len(now) != 2 || len(gone) != 0 {
		t.Fatalf("%d ports, %d gone", len(now), len(gone))
	}
	find := func(protocol v1alpha1.Protocol, address string) *port {
		return table.find(protocol, netip.MustParseAddrPort(address), []netip.Addr{nodeIP})
	}
	for _, address := range []string{"10.96.0.1:80", "192.0.2.1:30080"} {
		if p := find(v1alpha1.ProtocolTCP, address); p != now[0] {
			t.Errorf("%s: %v", address, p)
		}
	}
	for address, protocol := range map[string]v1alpha1.Protocol{"10.96.0.1:80": v1alpha1.ProtocolUDP, "[::1]:30080": v1alpha1.ProtocolTCP, "203.0.113.9:30080": v1alpha1.ProtocolTCP} {
		if p := find(protocol, address); p != nil {
			t.Errorf("%s: %v", address, p.id)
		}
	}
	// The ports stay if the Service changes.
	after, gone := table.set(id, webService(otherIP, 0), start)
	if after[0] != now[0] || len(gone) != 0 {
		t.Errorf("another port: %v, gone %v", after[0].id, gone)
	}
	for address, want := range map[string]*port{"10.96.0.1:80": nil, "192.0.2.1:30080": nil, "10.96.0.2:80": now[0]} {
		if p := find(v1alpha1.ProtocolTCP, address); p != want {
			t.Errorf("%s: %v", address, p)
		}
	}
	// Another Service takes its address over before it is gone.
	taker := webService(otherIP, 0)
	taker.Name = named("taker")
	taken, _ := table.set(serviceID{taker.Name, dataplane.IPv4}, taker, start)
	if _, gone = table.set(id, nil, start); len(gone) != 2 {
		t.Errorf("%d ports are gone, want 2", len(gone))
	}
	if p := find(v1alpha1.ProtocolTCP, "10.96.0.2:80"); p != taken[0] {
		t.Errorf("the address of the other Service: %v", p)
	}
	table.set(serviceID{taker.Name, dataplane.IPv4}, nil, start)
	// What was redirected to it before still arrives.
	for _, c := range []struct {
		after time.Duration
		want  *port
	}{{queueTime - 1, taken[0]}, {queueTime, nil}} {
		if p := table.arrived(v1alpha1.ProtocolTCP, netip.MustParseAddrPort("10.96.0.2:80"), nil, start.Add(c.after)); p != c.want {
			t.Errorf("%s after the end: %v", c.after, p)
		}
	}
	table.set(id, nil, start.Add(queueTime))
	if len(table.ports)+len(table.destinations)+len(table.services)+len(table.left)+len(table.leaving) != 0 {
		t.Errorf("left: %v", table)
	}
}
