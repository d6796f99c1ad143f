package userspace

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func addresses(count int) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range count {
		out = append(out, netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:80", i+1)))
	}
	return out
}

func clientAt(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }

// picks returns the last numbers of the endpoints that a policy gives so many connections of one client.
func picks(b *balancer, p policy, client netip.Addr, count int, now time.Time) (out []int) {
	for range count {
		e := b.pick(p, client, nil, now)
		if e == nil {
			return out
		}
		a := e.address.Addr().As4()
		out = append(out, int(a[3]))
	}
	return out
}

func newBalancer(affinityTimeout time.Duration, cluster, local []netip.AddrPort) *balancer {
	b := &balancer{}
	b.set([policies][]netip.AddrPort{cluster, local}, nil, affinityTimeout)
	return b
}

func TestRoundRobin(t *testing.T) {
	now := time.Now()
	b := newBalancer(0, addresses(3), addresses(2)[1:])
	for _, one := range []struct {
		policy policy
		want   []int
	}{{cluster, []int{1, 2, 3, 1}}, {local, []int{2, 2}}, {cluster, []int{2, 3}}} {
		if diff := cmp.Diff(one.want, picks(b, one.policy, clientAt(1), len(one.want), now)); diff != "" {
			t.Errorf("policy %d (-want +got):\n%s", one.policy, diff)
		}
	}
	if e := newBalancer(0, addresses(1), nil).pick(local, clientAt(1), nil, now); e != nil {
		t.Errorf("an endpoint without any: %v", e.address)
	}
}

func TestTried(t *testing.T) {
	b := newBalancer(0, addresses(2), nil)
	first := b.pick(cluster, clientAt(1), nil, time.Now())
	second := b.pick(cluster, clientAt(1), []*endpoint{first}, time.Now())
	if second == nil || second == first {
		t.Fatalf("after %v: %v", first.address, second)
	}
	if e := b.pick(cluster, clientAt(1), []*endpoint{first, second}, time.Now()); e != nil {
		t.Errorf("after both: %v", e.address)
	}
}

func TestRest(t *testing.T) {
	now := time.Now()
	b := newBalancer(0, addresses(4), nil)
	known := func(i int) *endpoint { return b.known[addresses(4)[i-1]] }
	b.failure(known(1), v1alpha1.EndpointRejects, now.Add(-time.Millisecond), &counters{})
	b.failure(known(1), v1alpha1.EndpointRejects, now, &counters{}) // a connection that began earlier
	if diff := cmp.Diff([]int{2, 3, 4, 2}, picks(b, cluster, clientAt(1), 4, now)); diff != "" {
		t.Errorf("one rests (-want +got):\n%s", diff)
	}
	b.failure(known(2), v1alpha1.EndpointRejects, now, &counters{})
	b.failure(known(3), v1alpha1.EndpointRejects, now, &counters{}) // would be more than half
	if got := picks(b, cluster, clientAt(1), 4, now); slices.Contains(got, 1) || slices.Contains(got, 2) || !slices.Contains(got, 3) {
		t.Errorf("with three failures, half rest: %v", got)
	}
	// Those that rest are the last to be tried, the one that has rested longest first.
	tried := []*endpoint{known(3), known(4)}
	if e := b.pick(cluster, clientAt(1), tried, now); e != known(1) {
		t.Errorf("after those that do not rest: %v", e.address)
	}
	later := now.Add(firstRest)
	if got := picks(b, cluster, clientAt(1), 4, later); !slices.Contains(got, 1) {
		t.Errorf("after its rest: %v", got)
	}
	b.failure(known(1), v1alpha1.EndpointRejects, later, &counters{})
	if !known(1).resting(cluster, later.Add(firstRest)) || known(1).resting(cluster, later.Add(2*firstRest)) {
		t.Error("a second failure in a row does not rest twice as long")
	}
	b.success(known(1))
	if known(1).resting(cluster, later) || known(1).failures != 0 {
		t.Error("a success does not end the rest")
	}
	alone := newBalancer(0, addresses(1), nil)
	alone.failure(alone.known[addresses(1)[0]], v1alpha1.EndpointRejects, now, &counters{})
	if len(picks(alone, cluster, clientAt(1), 1, now)) != 1 {
		t.Error("the only endpoint rests")
	}
}

func TestRestAfter(t *testing.T) {
	var got []time.Duration
	for _, failures := range []int{1, 2, 3, 5, 6, 1000} {
		got = append(got, restAfter(failures)/time.Second)
	}
	if diff := cmp.Diff([]time.Duration{1, 2, 4, 16, 30, 30}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAffinity(t *testing.T) {
	now := time.Now()
	b := newBalancer(time.Minute, addresses(3), addresses(3)[1:2])
	mine := picks(b, cluster, clientAt(1), 1, now)[0]
	for i := range 5 {
		picks(b, cluster, clientAt(2+i), 1, now)
	}
	if diff := cmp.Diff([]int{mine, mine}, picks(b, cluster, clientAt(1), 2, now)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Each connection extends it.
	for i := range 3 {
		if got := picks(b, cluster, clientAt(1), 1, now.Add(time.Duration(i)*50*time.Second)); got[0] != mine {
			t.Errorf("after %d connections: %v", i, got)
		}
	}
	b.failure(b.known[addresses(3)[mine-1]], v1alpha1.EndpointRejects, now, &counters{})
	if got := picks(b, cluster, clientAt(1), 1, now); got[0] == mine {
		t.Error("it stays with an endpoint that has failed")
	}
	if got := picks(b, local, clientAt(1), 1, now); got[0] != 2 {
		t.Errorf("an endpoint of another policy: %v", got)
	}
	b.set([policies][]netip.AddrPort{addresses(3), nil}, nil, time.Minute)
	if got := picks(b, cluster, clientAt(1), 1, now); got[0] != 2 {
		t.Errorf("a change of endpoints has moved the client: %v", got)
	}
	b.set([policies][]netip.AddrPort{addresses(1), nil}, nil, time.Minute)
	if got := picks(b, cluster, clientAt(1), 1, now); got[0] != 1 {
		t.Errorf("its endpoint is gone: %v", got)
	}
	b.success(b.known[addresses(1)[0]])
	b.set([policies][]netip.AddrPort{addresses(2), nil}, nil, 0)
	if got := picks(b, cluster, clientAt(1), 2, now); got[0] == got[1] {
		t.Errorf("affinity has ended: %v", got)
	}
}

func TestAffinityEnds(t *testing.T) {
	now := time.Now()
	b := newBalancer(time.Minute, addresses(2), nil)
	picks(b, cluster, clientAt(1), 1, now)
	picks(b, cluster, clientAt(2), 1, now.Add(30*time.Second))
	picks(b, cluster, clientAt(2), 1, now.Add(time.Minute))
	if n := len(b.affinity.clients); n != 1 {
		t.Errorf("%d clients are remembered, want 1", n)
	}
	for i := range 2 * maxClients {
		picks(b, cluster, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 1, now)
	}
	if n := len(b.affinity.clients); n != maxClients || b.affinity.recent.Len() != n {
		t.Errorf("%d clients are remembered, want %d", n, maxClients)
	}
}

func TestEndpointsThatStay(t *testing.T) {
	now := time.Now()
	b := newBalancer(0, addresses(3), nil)
	stays, goes := b.known[addresses(3)[0]], b.known[addresses(3)[2]]
	b.failure(stays, v1alpha1.EndpointRejects, now, &counters{})
	b.set([policies][]netip.AddrPort{addresses(2), addresses(1)}, nil, 0)
	if stays.gone.Load() || !goes.gone.Load() {
		t.Errorf("gone: the one that stays %t, the other one %t", stays.gone.Load(), goes.gone.Load())
	}
	if b.known[addresses(3)[0]] != stays || !stays.resting(cluster, now) || !stays.listed[local] {
		t.Error("one that stays has lost its state")
	}
	if diff := cmp.Diff(map[string]int64{addresses(1)[0].String(): 1}, b.failuresByEndpoint()); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
}

// An endpoint of which a policy has no other does not rest for that policy.
func TestRestOfEachPolicy(t *testing.T) {
	now := time.Now()
	b := newBalancer(0, addresses(4), addresses(1))
	only := b.known[addresses(1)[0]]
	b.failure(only, v1alpha1.EndpointRejects, now, &counters{})
	if !only.resting(cluster, now) || only.resting(local, now) {
		t.Errorf("it rests: of policy Cluster %t, Local %t", only.resting(cluster, now), only.resting(local, now))
	}
}

// An endpoint that still serves keeps its UDP clients although no policy selects it.
func TestServingEndpoints(t *testing.T) {
	b := newBalancer(0, addresses(3), nil)
	serving := b.known[addresses(2)[1]]
	b.set([policies][]netip.AddrPort{addresses(1), nil}, addresses(2), 0)
	if serving.gone.Load() || serving.listed[cluster] {
		t.Errorf("gone: %t, selected: %t", serving.gone.Load(), serving.listed[cluster])
	}
	if got := picks(b, cluster, clientAt(1), 2, time.Now()); !slices.Equal(got, []int{1, 1}) {
		t.Errorf("new clients get %v", got)
	}
	b.set([policies][]netip.AddrPort{addresses(1), nil}, addresses(1), 0)
	if !serving.gone.Load() {
		t.Error("it serves no more, and is not gone")
	}
}
