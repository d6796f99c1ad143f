package scenarios

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestLocalEndpointsComeAndGoInIPVS moves the endpoints of a Service between the node
// and others, under external policy Local mostly, while some have connections, and
// traces packets after each message to the kernel: clients outside never come to
// another node with their own address, as answers would go past this one; nor does
// the node itself with the address of the Service. Pods and the node reach an endpoint
// all the time if they do so before and after.
func TestLocalEndpointsComeAndGoInIPVS(t *testing.T) {
	moves := map[string]int{}
	for seed := range uint64(40) {
		w := newSteppedWorld(t)
		w.setAddresses(addrs("192.168.0.2", "192.168.1.2")...)
		w.Add(good)
		rng := rand.New(rand.NewPCG(seed, 11))
		w.Add(movingService(rng))
		w.Sync()
		for step := range 12 {
			w.connectSome(rng)
			before := w.fates()
			w.Add(movingService(rng))
			if rng.IntN(8) == 0 {
				w.remove("svc1")
			}
			w.Full = rng.IntN(3) == 0
			w.recorder.inputs = nil
			between := []map[string][]string{before}
			w.recorder.between = func() { between = append(between, w.fates()) }
			w.Sync()
			w.recorder.between = nil
			after := w.fates()
			for part, fates := range append(between, after) {
				if wrong := astray(fates, before, after); len(wrong) > 0 {
					t.Fatalf("seed %d, step %d, part %d of %d: %s\n%s", seed, step, part, len(between), strings.Join(wrong, "\n"), strings.Join(w.recorder.inputs, "\n"))
				}
			}
			const vip = "EXT → 1.2.3.4:80"
			moves[before[vip][0][:4]+" to "+after[vip][0][:4]]++
		}
	}
	if len(moves) < 9 {
		t.Errorf("too little has happened: %v", moves)
	}
	t.Log(moves)
}

// movingService is one with endpoints on this node (10.180.0.0/16), on others
// (10.181.0.0/16), on both or nowhere.
func movingService(rng *rand.Rand) Service {
	s := Service{
		CIP: "172.30.0.41", VIPs: []string{"1.2.3.4"}, XIPs: []string{"192.168.99.11"}, NP: 3001,
		ETPLocal: rng.IntN(5) > 0, ITPLocal: rng.IntN(3) == 0,
	}
	for i := range rng.IntN(3) {
		s.Endpoints = append(s.Endpoints, fmt.Sprintf("R 10.181.%d.%d", i, rng.IntN(2)))
	}
	for i := range rng.IntN(2) * (1 + rng.IntN(2)) {
		s.Endpoints = append(s.Endpoints, fmt.Sprintf("L 10.180.%d.%d", i, rng.IntN(2)))
	}
	return s
}

// connectSome gives some real servers connections.
func (w *world) connectSome(rng *rand.Rand) {
	w.Helper()
	w.drains = true
	for _, key := range []string{"1.2.3.4:80", "192.168.99.11:80", "192.168.0.2:3001"} {
		reals, err := w.ipvs.Reals(w.key(key))
		if err != nil {
			w.Fatal(err)
		}
		for _, real := range slices.SortedFunc(maps.Keys(reals), netip.AddrPort.Compare) {
			if err := w.ipvs.SetConnections(w.key(key), real, rng.IntN(2), 0); err != nil {
				w.Fatal(err)
			}
		}
	}
}

// astray states which packets go where they must not at a moment between before and
// after.
func astray(fates, before, after map[string][]string) []string {
	var wrong []string
	delivered := func(list []string) bool {
		return len(list) > 0 && !slices.ContainsFunc(list, func(f string) bool { return !strings.HasPrefix(f, "10.") })
	}
	for packet, list := range fates {
		from, to, _ := strings.Cut(packet, " → ")
		// What the node sends to an address that ends fails one way or another.
		for _, fate := range list {
			if to == "172.30.0.41:80" || from == POD || from == NODE && !delivered(after[packet]) {
				continue
			}
			if strings.HasPrefix(fate, "10.181.") && strings.HasSuffix(fate, "-M") {
				wrong = append(wrong, packet+" forwarded as it is: "+fate)
			}
		}
		if delivered(before[packet]) && delivered(after[packet]) && !delivered(list) {
			wrong = append(wrong, fmt.Sprintf("%s: %s, before %s, after %s", packet, list, before[packet], after[packet]))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// TestPodsDrainWhereALocalEndpointComes: what pods hold to another node goes on when
// an endpoint comes to this one; nothing new goes there.
func TestPodsDrainWhereALocalEndpointComes(t *testing.T) {
	w := newSteppedWorld(t)
	svc := Service{CIP: "172.30.0.42", VIPs: []string{"5.6.7.8"}, ETPLocal: true, Endpoints: []string{"R 10.180.1.2"}}
	w.Add(svc)
	w.Sync()
	w.opens(POD, "5.6.7.8:80", "10.180.1.2:80")
	w.drains = true
	svc.Endpoints = append(svc.Endpoints, "L 10.180.0.2")
	w.Add(svc)
	w.Sync()
	w.server("5.6.7.8:80", "rr 10.180.0.2:80 10.180.1.2:80=0")
	w.entries("NODEPROXY-NO-LOCAL")
	for _, from := range []string{POD, NODE, EXT} {
		w.sees(from, "5.6.7.8:80", "10.180.0.2 -M")
	}
	svc.Endpoints = svc.Endpoints[:1]
	w.Add(svc)
	w.Sync()
	w.server("5.6.7.8:80", "rr 10.180.1.2:80")
	w.sees(POD, "5.6.7.8:80", "10.180.1.2 -M")
	w.sees(NODE, "5.6.7.8:80", "10.180.1.2 +M")
	w.sees(EXT, "5.6.7.8:80", "DROP")
}
