package plane

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// besideLimit is how long a small Service may take that changes together with one at the limits;
	// afterLimit is how long it may take if it changes once the other one is being written.
	besideLimit, afterLimit = 2 * time.Second, 10 * time.Second
)

// atLimits programs a Service with as many endpoints as one may have beside a small one.
func atLimits(t *testing.T) {
	p := newPlane(t, dataplane.IPv4)
	p.apply(t)
	small := p.service(p.end(1))
	large := p.service()
	large.Name.Namespace, large.ClusterIP = "attacker", netip.MustParseAddr("10.96.0.2")
	large.Ports[0].NodePort, large.Ports[0].Available = 0, true
	for i := range v1alpha1.MaxServiceEndpoints {
		a := netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}) //nolint:gosec // the lower bits
		large.Ports[0].Cluster = append(large.Ports[0].Cluster, netip.AddrPortFrom(a, 8080))
	}

	key := ipvs.Key{Addr: small.ClusterIP, Port: 80, Protocol: v1alpha1.ProtocolTCP}
	programmed := make(chan time.Time, 1)
	go func() {
		kernel := ipvs.NewKernel(p.family, "")
		if err := kernel.Open(); err != nil {
			t.Error(err)
		}
		for end := time.Now().Add(patience); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
			if reals, err := kernel.Reals(key); err == nil && len(reals) == 1 {
				programmed <- time.Now()
				return
			}
		}
		close(programmed)
	}()
	p.set(large, small)
	begin := time.Now()
	p.apply(t)
	all := time.Since(begin)
	beside := (<-programmed).Sub(begin)
	p.set(p.service(p.end(2)))
	begin = time.Now()
	p.apply(t)
	after := all + time.Since(begin)
	t.Logf("small Service together with %d real servers: %s, after them: %s", v1alpha1.MaxServiceEndpoints, beside, after)
	if beside < 0 || beside > besideLimit {
		t.Errorf("a small Service is programmed after %s beside a large one, more than %s", beside, besideLimit)
	}
	if after > afterLimit {
		t.Errorf("a small Service is programmed after %s if it waits for a large one, more than %s", after, afterLimit)
	}
	p.verify(t, 0)
	p.cleanup(t)
}
