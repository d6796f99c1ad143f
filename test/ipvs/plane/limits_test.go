package plane

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// smallLimit is how long a small Service may take that changes together with one at the limits, or while that is
// being written.
const smallLimit = 4 * time.Second

// atLimits programs a Service with as many endpoints as one may have beside a small one, which changes all the time.
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
	p.r.Pause = func() bool { return true }
	p.set(large, small)
	begin := time.Now()
	result := p.apply(t)
	beside := (<-programmed).Sub(begin)
	longest, steps := time.Since(begin), 1
	for ; len(result.Unfinished) > 0 && steps < 100; steps++ {
		p.set(p.service(p.end(steps%2+1)), large)
		step := time.Now()
		result = p.apply(t)
		longest = max(longest, time.Since(step))
	}
	between := 2 * longest // its own step, and the rest of the one during which it changes
	t.Logf("%d real servers in %s and %d steps; a small Service together with them: %s, between steps: up to %s",
		v1alpha1.MaxServiceEndpoints, time.Since(begin), steps, beside, between)
	if beside < 0 || beside > smallLimit {
		t.Errorf("a small Service is programmed after %s beside a large one, more than %s", beside, smallLimit)
	}
	if len(result.Unfinished) > 0 {
		t.Errorf("after %d steps, these are unfinished: %v", steps, result.Unfinished)
	}
	if between > smallLimit || steps < 3 {
		t.Errorf("a small Service may wait for %s while a large one is programmed in %d steps, more than %s", between, steps, smallLimit)
	}
	p.verify(t, 0)
	p.cleanup(t)
}
