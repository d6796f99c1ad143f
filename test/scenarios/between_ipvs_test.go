package scenarios

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest/ipvstest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
)

// stepped is a kernel that takes each change by itself, as netlink does, and has
// the recorder look at it after each.
type stepped struct {
	*ipvstest.Kernel
	*recorder
}

// took notes a change that the kernel has taken.
func (s stepped) took(err error) error {
	if err == nil {
		calls := s.Kernel.Writes()
		s.inputs = append(s.inputs, calls[len(calls)-1])
		if s.between != nil {
			s.between()
		}
	}
	return err
}

func (s stepped) AddServer(k ipvs.Key, v ipvs.Server) error { return s.took(s.Kernel.AddServer(k, v)) }
func (s stepped) ChangeServer(k ipvs.Key, v ipvs.Server) error {
	return s.took(s.Kernel.ChangeServer(k, v))
}
func (s stepped) DeleteServer(k ipvs.Key) error { return s.took(s.Kernel.DeleteServer(k)) }
func (s stepped) AddReal(k ipvs.Key, real netip.AddrPort, weight int) error {
	return s.took(s.Kernel.AddReal(k, real, weight))
}
func (s stepped) ChangeReal(k ipvs.Key, real netip.AddrPort, weight int) error {
	return s.took(s.Kernel.ChangeReal(k, real, weight))
}
func (s stepped) DeleteReal(k ipvs.Key, real netip.AddrPort) error {
	return s.took(s.Kernel.DeleteReal(k, real))
}
func (s stepped) Bind(a netip.Addr) error   { return s.took(s.Kernel.Bind(a)) }
func (s stepped) Unbind(a netip.Addr) error { return s.took(s.Kernel.Unbind(a)) }

func (s stepped) Addresses() ([]netip.Addr, error) { return s.Kernel.Addresses() }

// ChangeSets lets each entry be a change.
func (s stepped) ChangeSets(changes []ipvs.SetChange) error {
	var adds, removes []ipvs.SetChange
	for _, c := range changes {
		adds = append(adds, ipvs.SetChange{Name: c.Name, Type: c.Type, Create: c.Create})
		for _, e := range c.Add {
			adds = append(adds, ipvs.SetChange{Name: c.Name, Type: c.Type, Add: []ipvs.Entry{e}})
		}
		for _, e := range c.Remove {
			removes = append(removes, ipvs.SetChange{Name: c.Name, Type: c.Type, Remove: []ipvs.Entry{e}})
		}
	}
	for _, c := range append(adds, removes...) {
		if err := s.took(s.Kernel.ChangeSets([]ipvs.SetChange{c})); err != nil {
			return err
		}
	}
	return nil
}

// newSteppedWorld is newIPVSWorld with a stepped kernel.
func newSteppedWorld(t *testing.T) *world {
	w := newIPVSWorld(t, dataplane.IPv4)
	w.recorder = &recorder{Kernel: w.kernel}
	w.newPlane = func() dataplane.Dataplane {
		return ipvs.New(dataplane.IPv4, ipvs.Options{
			Kernel: stepped{w.ipvs, w.recorder},
			Rules:  iptables.NewFixedRules(ipvs.Declaration(), dataplane.IPv4, iptables.Options{Modes: modes.Declarations(), Model: w.recorder}),
		})
	}
	w.plane = w.newPlane()
	return w
}

// TestNothingFallsBetweenInIPVS is TestNothingFallsBetween in mode IPVS: after each
// message to the kernel.
func TestNothingFallsBetweenInIPVS(t *testing.T) {
	for seed := range uint64(40) {
		w := newSteppedWorld(t)
		w.setAddresses(addrs("192.168.0.2", "192.168.1.2")...)
		w.Add(good)
		if parts := w.changeAtRandom(seed); t.Failed() || parts < 50 {
			t.Fatalf("seed %d: %d parts", seed, parts)
		}
	}
}

// TestNothingComesToTheNodesOwnServers: while Services come and go, what is sent to
// an address on kube-ipvs0 is delivered to an endpoint or rejected. The node has it
// for its own, so what neither happens to would come to a server of the node.
func TestNothingComesToTheNodesOwnServers(t *testing.T) {
	for seed := range uint64(20) {
		w := newSteppedWorld(t)
		w.Add(good)
		w.Sync()
		w.recorder.between = func() {
			bound, _, err := w.ipvs.Bound()
			if err != nil {
				t.Fatal(err)
			}
			for packet, fates := range w.fates() {
				_, to, _ := strings.Cut(packet, " → ")
				if slices.Contains(bound, netip.MustParseAddrPort(to).Addr()) && slices.ContainsFunc(fates, func(f string) bool { return strings.HasPrefix(f, "PASS") }) {
					t.Errorf("seed %d: %s: %s\n%s", seed, packet, fates, strings.Join(w.recorder.inputs, "\n"))
				}
			}
		}
		rng := rand.New(rand.NewPCG(seed, 7))
		for range 4 {
			w.Add(anyService(rng))
			w.Full = rng.IntN(3) == 0
			w.Sync()
			w.remove("svc1")
			w.Full = rng.IntN(3) == 0
			w.Sync()
		}
		if t.Failed() {
			return
		}
	}
}

// TestOneEndpointChangedInIPVS: what changes costs what it is, whatever the number
// of Services: a message for the endpoint that comes, one to ask how many
// connections the other one has, one for it to go.
func TestOneEndpointChangedInIPVS(t *testing.T) {
	w := newIPVSWorld(t, dataplane.IPv4)
	for i := range 100 {
		w.Add(numbered(i, 1, 2))
	}
	w.Sync()
	w.ipvs.Reset()
	w.Add(numbered(7, 1, 3))
	w.unchecked = true
	w.Sync()
	var got []string
	for _, c := range w.ipvs.Calls() {
		if c.Method != "Open" {
			got = append(got, ipvstest.Text(c))
		}
	}
	want := []string{
		"AddReal 172.30.0.48,tcp:80 10.187.0.3:80 1", "Reals 172.30.0.48,tcp:80", "DeleteReal 172.30.0.48,tcp:80 10.187.0.2:80",
	}
	if !slices.Equal(got, want) || w.ipvs.Messages() != len(want) {
		t.Errorf("%d messages: %q", w.ipvs.Messages(), got)
	}
}
