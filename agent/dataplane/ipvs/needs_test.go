package ipvs

import (
	"reflect"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// TestLeave: what stays is counted once, even if leave is called twice.
func TestLeave(t *testing.T) {
	c := &config{family: dataplane.IPv4}
	have := &snapshot{}
	one, two := setEntry{c.set(setLoadBalancerFW), "1.2.3.4,tcp:80"}, setEntry{c.set(setClusterIP), "10.0.0.1,tcp:80"}
	once := newDesired(c)
	once.leave([]setEntry{one, two}, have)
	again := newDesired(c)
	again.leave([]setEntry{one}, have)
	again.leave([]setEntry{one, two}, have)
	if !reflect.DeepEqual(once, again) {
		t.Errorf("%+v\nwant %+v", again, once)
	}
	if len(once.left) != 2 || once.needs.entries[one] != 1 || once.needs.used[two.set] != 1 || len(once.needs.out) != 1 {
		t.Errorf("%+v", once)
	}
}
