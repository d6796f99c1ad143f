package nftables

import (
	"bytes"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestPrune: without it, Services that are not known stay.
func TestPrune(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply()
	delete(r.rules.Services, web().Name)
	r.restart()
	r.rules.Prune = false
	r.apply()
	if out, err := exec.Command("nft", "list", "table", "ip", "nodeproxy").Output(); err != nil || !strings.Contains(string(out), "default/web:http") {
		t.Errorf("the Service is gone: %v: %s", err, out)
	}
	r.rules.Prune, r.rules.Full = true, true
	r.apply()
}

// startFromOlder stands for a restarted agent whose checkpoint has other endpoints than the kernel.
func startFromOlder(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.set(web())
	r.apply()
	old := web()
	old.Ports[0].Cluster, old.ExternalIPs = eps("10.244.9.9:8080"), addrs("203.0.113.1 203.0.113.99")
	r.set(old)
	r.restart()
	r.rules.Preserve = map[dataplane.ServiceName]struct{}{old.Name: {}}
	return r
}

// TestPreserve: what comes from the checkpoint changes nothing that the kernel has.
func TestPreserve(t *testing.T) {
	r := startFromOlder(t)
	if _, err := r.Apply(t.Context(), &r.rules); err != nil {
		t.Fatal(err)
	}
	r.expectEndpoints("preserved", "10.96.0.1:80", "10.244.0.1:8080 10.244.1.1:8080")
	r.expectEndpoints("new", "203.0.113.99:80", "10.244.9.9:8080")
}

// otherHook makes one of our base chains one of another layout, which takes a new table.
const otherHook = "delete chain ip nodeproxy nat-output; add chain ip nodeproxy nat-output { type nat hook output priority -150; }"

// expectEndpoints expects the endpoints of a destination in the table; empty: there is none.
func (r *rig) expectEndpoints(when, address, want string) {
	r.Helper()
	c := &config{family: r.of}
	l, err := c.list(r.conn)
	if err != nil {
		r.Fatal(err)
	}
	o := c.state(l).destinations[key{netip.MustParseAddrPort(address), v1alpha1.ProtocolTCP}]
	switch {
	case o.destination == nil && want != "":
		r.Errorf("%s: the table lacks %s", when, address)
	case o.destination != nil && (!slices.Equal(o.endpoints, eps(want)) || o.chain.count != len(o.endpoints)):
		r.Errorf("%s: the table has for %s %s: %v, want %s", when, address, o.chain.name(), o.endpoints, want)
	}
}

// TestRetainedThroughRebuild: Services that are not known yet, or rejected, stay in a table that is made
// anew.
func TestRetainedThroughRebuild(t *testing.T) {
	const serves = "10.244.0.1:8080 10.244.1.1:8080"
	for what, command := range map[string]string{"another layout": otherHook, "flushed": "flush ruleset", "flushed map": "flush map ip nodeproxy endpoints"} {
		r := newRig(t)
		r.set(web())
		r.set(numbered(1, 3))
		r.apply()
		delete(r.rules.Services, web().Name)
		r.restart()
		r.rules.Prune = false
		if command == otherHook { // also where nothing but the kernel has them
			r.nft(command)
		}
		r.apply()
		r.expectEndpoints(what+", after a restart", "10.96.0.1:80", serves)
		for range 2 {
			r.nft(command)
			r.rules.Full = true
			r.apply()
			r.expectEndpoints(what, "10.96.0.1:80", serves)
		}
		if elements, _ := r.sizes(); elements[setClusterIPs] != 2 {
			t.Errorf("%s: %d cluster IPs", what, elements[setClusterIPs])
		}
		r.set(web())
		r.apply()
		bad := web()
		bad.Ports = slices.Clone(bad.Ports)
		bad.Ports[0].Cluster = append(slices.Clone(bad.Ports[0].Cluster), netip.MustParseAddrPort("[fd00::1]:80")) // of the other family
		r.set(bad)
		if command == otherHook { // a rejection that is new
			r.nft(command)
			r.rules.Full = true
		}
		for range 2 {
			if result := r.apply(); len(result.Rejected) != 1 {
				t.Errorf("%s: rejected are %v", what, result.Rejected)
			}
			r.expectEndpoints(what+", rejected", "10.96.0.1:80", serves)
			r.rules.Rest = map[dataplane.ServiceName]struct{}{bad.Name: {}}
			r.nft(command)
			r.rules.Full = true
		}
		r.rules.Rest = nil
		delete(r.rules.Services, bad.Name)
		r.rules.Prune, r.rules.Full = true, true
		r.apply()
		r.expectEndpoints(what+", removed", "10.96.0.1:80", "")
	}
}

// TestRetainedIsRejected: what the kernel rejects although it had it does not make every full pass fail.
func TestRetainedIsRejected(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.set(numbered(1, 3))
	r.apply()
	delete(r.rules.Services, web().Name)
	r.restart()
	r.rules.Prune = false
	r.nft(otherHook)
	r.wrap(func(b *nft.Batch, generation uint32, under kernel) error {
		at := 0
		for m := range b.Messages() {
			if bytes.Contains(m.Attributes, web().ClusterIP.AsSlice()) {
				return &nft.RejectedError{Message: at, Err: unix.EINVAL}
			}
			at++
		}
		return under.Commit(b, generation)
	})
	r.apply()
	r.expectEndpoints("rejected", "10.96.0.1:80", "")
	r.expectEndpoints("another Service", "172.16.0.1:80", "10.128.0.1:8000 10.128.0.1:8001 10.128.0.1:8002")
}

// TestChainOfRejected: a chain that only a rejected Service needs is repaired, too.
func TestChainOfRejected(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply()
	_, before := r.sizes()
	bad := web()
	bad.Ports = slices.Clone(bad.Ports)
	bad.Ports[0].Cluster = append(slices.Clone(bad.Ports[0].Cluster), netip.MustParseAddrPort("[fd00::1]:80")) // of the other family
	r.set(bad)
	r.nft("insert rule ip nodeproxy pick-2 drop")
	r.rules.Full = true
	if _, err := r.Apply(t.Context(), &r.rules); err != nil {
		t.Fatal(err)
	}
	if _, after := r.sizes(); after["pick-2"] != before["pick-2"] {
		t.Errorf("chain pick-2 has %d rules, not %d", after["pick-2"], before["pick-2"])
	}
}

// TestPreservedThroughRebuild: the same for what may be newer than the checkpoint.
func TestPreservedThroughRebuild(t *testing.T) {
	r := startFromOlder(t)
	r.nft(otherHook)
	if _, err := r.Apply(t.Context(), &r.rules); err != nil {
		t.Fatal(err)
	}
	r.expectEndpoints("preserved", "10.96.0.1:80", "10.244.0.1:8080 10.244.1.1:8080")
	r.expectEndpoints("new", "203.0.113.99:80", "10.244.9.9:8080")
}

// TestUnusedChains: those that no Service needs stay for later ones, so that a restart writes nothing.
func TestUnusedChains(t *testing.T) {
	r := newRig(t)
	s := numbered(1, 5)
	s.AffinitySeconds = 60
	r.set(s)
	r.set(numbered(2, 3))
	r.apply()
	expect := func(when string, chains ...string) {
		t.Helper()
		_, rules := r.sizes()
		for _, name := range chains {
			if rules[name] == 0 {
				t.Errorf("%s: the table lacks chain %s", when, name)
			}
		}
	}
	chains := []string{"cluster-affine-5", "pick-affine-5", "pick-5"}
	delete(r.rules.Services, s.Name)
	r.restart()
	r.rules.Prune = false
	r.apply()
	expect("of a Service that is retained", chains...)
	r.rules.Preserve, r.rules.Full = map[dataplane.ServiceName]struct{}{s.Name: {}}, true
	r.set(numbered(1, 4)) // which the kernel does not get
	if _, err := r.Apply(t.Context(), &r.rules); err != nil {
		t.Fatal(err)
	}
	expect("of one that is preserved", chains...)
	r.rules.Preserve, r.rules.Prune, r.rules.Full = nil, true, true
	delete(r.rules.Services, s.Name)
	r.apply()
	expect("after a full pass", append(chains, "cluster-4", "pick-4")...)
	r.set(s)
	r.apply()
	delete(r.rules.Services, s.Name)
	r.rules.Dirty[s.Name] = struct{}{}
	r.apply()
	expect("after a partial one", chains...) // for the next Service
	r.rules.Full = true
	r.apply()
	expect("after the next full pass", chains...)
	expect("of another Service", "cluster-3", "pick-3")
	r.set(s)
	r.apply()
	expect("of a new Service", chains...)
}
