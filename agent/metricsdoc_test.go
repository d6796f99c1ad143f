package agent

import (
	"net/netip"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/userspace"
	"github.com/nodeproxy-io/nodeproxy/agent/metrics"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/metricsdoc"
)

func TestMetricsAreDocumented(t *testing.T) {
	r := &metricsdoc.Recorder{}
	metrics.RegisterMetrics(r)
	apiclient.NewMetrics(r)
	r.MustRegister(servingProxy(t).Collector())
	metricsdoc.Check(t, "../docs/metrics.md", "agent", r)
}

// servingProxy is a userspace proxy that has served a connection to a Service.
func servingProxy(t *testing.T) *userspace.Proxy {
	t.Helper()
	node := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	p := userspace.NewModel(func() []netip.Addr { return node })
	if err := p.Listen(dataplane.IPv4, node); err != nil {
		t.Fatal(err)
	}
	svc := &dataplane.Service{ClusterIP: netip.MustParseAddr("10.96.0.1"), Ports: []dataplane.Port{
		{Protocol: v1alpha1.ProtocolTCP, Port: 80, Cluster: []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:8080")}},
	}}
	served, err := p.Serve(dataplane.IPv4, svc.Name, svc)
	if err != nil {
		t.Fatal(err)
	}
	if _, redirected := p.Endpoints(v1alpha1.ProtocolTCP, netip.AddrPortFrom(svc.ClusterIP, 80), served.Ports[0].Cluster[0]); !redirected {
		t.Fatal("the proxy does not serve the Service")
	}
	return p
}
