package scenarios

import (
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// TestAffinity follows clients of a Service with session Affinity: each keeps
// its endpoint by whatever address it comes, until it has been silent for the
// timeout or the endpoint goes.
func TestAffinity(t *testing.T) {
	w := newWorld(t, dataplane.IPv4)
	s := Service{
		CIP: "172.30.0.41", VIPs: []string{"1.2.3.4"}, NP: 3001, Affinity: 10 * time.Minute,
		Endpoints: []string{"L 10.180.0.1", "R 10.180.1.1", "R 10.180.2.1"},
	}
	w.Add(s)
	w.Sync()
	const all = "10.180.0.1 10.180.1.1 10.180.2.1"
	w.sees(POD, "172.30.0.41:80", all+" -M")
	w.connect(POD, "172.30.0.41:80", "10.180.1.1:80")
	w.sees(POD, "172.30.0.41:80", "10.180.1.1 -M")
	w.sees(POD, "1.2.3.4:80", "10.180.1.1 +M")
	w.sees(POD, "192.168.0.2:3001", "10.180.1.1 +M")
	w.sees("10.0.0.3", "172.30.0.41:80", all+" -M") // another client

	w.kernel.Pass(10 * time.Minute)
	w.connect(POD, "1.2.3.4:80", "10.180.1.1:80") // still remembered, and again for as long
	w.kernel.Pass(10 * time.Minute)
	w.sees(POD, "172.30.0.41:80", "10.180.1.1 -M")
	w.kernel.Pass(time.Second)
	w.sees(POD, "172.30.0.41:80", all+" -M")

	w.connect(POD, "172.30.0.41:80", "10.180.2.1:80")
	s.Endpoints = s.Endpoints[:2]
	w.Add(s)
	w.Sync()
	w.sees(POD, "172.30.0.41:80", "10.180.0.1 10.180.1.1 -M")
}

// connect opens a connection that happens to go to an endpoint.
func (w *world) connect(from, to, endpoint string) {
	w.Helper()
	for _, o := range w.trace(from, to) {
		if o.Endpoint.String() == endpoint {
			w.kernel.Remember(o)
			return
		}
	}
	w.Fatalf("%s → %s cannot go to %s", from, to, endpoint)
}
