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

// servingProxy is a userspace proxy that serves a Service.
func servingProxy(t *testing.T) *userspace.Proxy {
	t.Helper()
	node := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	p := userspace.NewModel(func() []netip.Addr { return node })
	if err := p.Listen(dataplane.IPv4, node); err != nil {
		t.Fatal(err)
	}
	svc := &dataplane.Service{ClusterIP: netip.MustParseAddr("10.96.0.1"), Ports: []dataplane.Port{{Protocol: v1alpha1.ProtocolTCP, Port: 80}}}
	if _, err := p.Serve(dataplane.IPv4, svc.Name, svc); err != nil {
		t.Fatal(err)
	}
	return p
}
