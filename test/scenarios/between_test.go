package scenarios

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// TestNothingFallsBetween changes a Service at random and traces packets each
// time the kernel has taken a part of the change. A packet that is delivered
// before and after is delivered all the time, to an endpoint that the Service had
// or has; one that is rejected before and after is rejected all the time; none
// passes untranslated that does not before or after. Only in a full pass, which writes chains of Services
// before what leads to them where it cannot write all at once, may it be delivered
// by the one and the other for a moment.
func TestNothingFallsBetween(t *testing.T) {
	for seed := range uint64(40) {
		w := newWorld(t, dataplane.IPv4)
		w.Add(good)
		if seed%2 == 1 { // what is rejected keeps a full pass from writing all at once
			w.Add(Service{Name: "rejected", CIP: "172.30.0.66", Endpoints: []string{"R 10.66.6.6"}})
			w.recorder.reject, w.mayReject = "10.66.6.6", true
		}
		if parts := w.changeAtRandom(seed); t.Failed() || parts < 12 {
			t.Fatalf("seed %d: %d parts", seed, parts)
		}
	}
}

// changeAtRandom changes a Service step by step, and checks what becomes of
// packets in between. It returns how many parts the changes had.
func (w *world) changeAtRandom(seed uint64) (parts int) {
	w.Helper()
	rng := rand.New(rand.NewPCG(seed, 3))
	for step := range 12 {
		w.Add(anyService(rng))
		full := rng.IntN(4) == 0
		w.Full = full
		before := w.fates()
		w.recorder.inputs = nil
		var between []map[string][]string
		w.recorder.between = func() { between = append(between, w.fates()) }
		w.Sync()
		w.recorder.between = nil
		parts += len(between)
		after := w.fates()
		if step == 0 {
			continue
		}
		for i, fates := range between {
			for packet, seen := range fates {
				for _, fate := range seen {
					// Mode IPVS changes things one by one, so it is as a full pass.
					anyway := full || w.ipvs != nil
					if !slices.Contains(before[packet], fate) && !slices.Contains(after[packet], fate) && !servedAs(fate, before, after, packet, anyway) {
						w.Errorf("seed %d, step %d, part %d of %d: %s: %s, before %s, after %s\n%s", seed, step, i+1, len(between),
							packet, fate, before[packet], after[packet], strings.Join(w.recorder.inputs, "\n"))
					}
				}
			}
		}
		if w.Failed() {
			break
		}
	}
	return parts
}

// servedAs reports whether a packet meets what it may for a moment: another way
// of rejecting it, or, where it is delivered before or after, or anyway, one of the
// endpoints of its Service by another way.
func servedAs(fate string, before, after map[string][]string, packet string, anyway bool) bool {
	rejected := func(f string) bool { return f == "DROP-M" || f == "REJECT-M" }
	if rejected(fate) {
		return slices.ContainsFunc(before[packet], rejected) || slices.ContainsFunc(after[packet], rejected)
	}
	endpoint := fate[:len(fate)-2]
	delivered := func(list []string) bool {
		return slices.ContainsFunc(list, func(f string) bool { return strings.Contains(f, ":") })
	}
	if !strings.Contains(endpoint, ":") || !anyway && !delivered(before[packet]) && !delivered(after[packet]) {
		return false
	}
	for _, fates := range []map[string][]string{before, after} {
		for _, list := range fates {
			if slices.ContainsFunc(list, func(f string) bool { return strings.HasPrefix(f, endpoint) }) {
				return true
			}
		}
	}
	return false
}

// fates lists the possible fates of packets to the Service and to the good one.
func (w *world) fates() map[string][]string {
	w.Helper()
	out := map[string][]string{}
	for _, from := range []string{POD, NODE, EXT, BLK} {
		for _, to := range []string{"172.30.0.41:80", "1.2.3.4:80", "192.168.99.11:80", "192.168.0.2:3001", "172.30.0.99:80"} {
			outcomes, err := w.kernel.Trace(w.packet(from, to))
			if err != nil {
				w.Fatal(err)
			}
			for _, o := range outcomes {
				out[from+" → "+to] = append(out[from+" → "+to], outcomeText(&o))
			}
		}
	}
	return out
}

func anyService(rng *rand.Rand) Service {
	s := Service{
		CIP: "172.30.0.41", VIPs: []string{"1.2.3.4"}, XIPs: []string{"192.168.99.11"}, NP: 3001,
		ETPLocal: rng.IntN(2) == 0, ITPLocal: rng.IntN(3) == 0,
	}
	for i := range 1 + rng.IntN(3) {
		if rng.IntN(3) > 0 {
			s.Endpoints = append(s.Endpoints, fmt.Sprintf("%c 10.180.%d.%d", "LR"[rng.IntN(2)], i, rng.IntN(2)))
		}
	}
	if rng.IntN(3) == 0 {
		s.Ranges = []string{"203.0.113.0/25"}
	}
	if rng.IntN(4) == 0 {
		s.Affinity = time.Hour
	}
	return s
}
