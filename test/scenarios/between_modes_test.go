package scenarios

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// newModesWorld is a world of both modes, whose kernel is looked at after each
// change that it takes.
func newModesWorld(t *testing.T) *world {
	const family = dataplane.IPv4
	w := newIPVSWorld(t, family)
	w.setAddresses(addrs("192.168.0.2", "192.168.1.2")...)
	w.recorder = &recorder{Kernel: w.kernel}
	sysctl := t.TempDir()
	w.newPlane = func() dataplane.Dataplane {
		o := iptables.Options{Modes: modes.Declarations(), Model: w.recorder, SysctlDirectory: sysctl}
		return modes.New(
			modes.Plane{Declaration: iptables.Declaration(), ModeCleaner: iptables.New(family, o)},
			modes.Plane{Declaration: ipvs.Declaration(), ModeCleaner: ipvs.New(family, ipvs.Options{Kernel: stepped{w.ipvs, w.recorder}, Rules: iptables.NewFixedRules(ipvs.Declaration(), family, o)})},
		)
	}
	w.plane = w.newPlane()
	return w
}

// TestNothingFallsBetweenModes changes the mode, both ways, and traces packets
// each time the kernel has taken a part of the change: what becomes of each is
// what one of the modes does with it.
func TestNothingFallsBetweenModes(t *testing.T) {
	for seed := range uint64(40) {
		w := newModesWorld(t)
		rng := rand.New(rand.NewPCG(seed, 5))
		w.Add(good, anyService(rng))
		// A mode that knows nothing of the other one, on a kernel that holds nothing.
		alone := map[v1alpha1.ProxyMode]map[string][]string{}
		for _, mode := range []v1alpha1.ProxyMode{v1alpha1.ModeIPVS, v1alpha1.ModeIPTables} {
			w.Settings.Mode = &mode
			w.Full = true
			w.Sync()
			alone[mode] = w.fates()
			if err := w.plane.Cleanup(t.Context(), dataplane.CleanupOptions{}); err != nil {
				t.Fatal(err)
			}
			w.plane = w.newPlane()
		}
		for i, mode := range []v1alpha1.ProxyMode{v1alpha1.ModeIPTables, v1alpha1.ModeIPVS, v1alpha1.ModeIPTables, v1alpha1.ModeIPVS} {
			w.Settings.Mode = &mode
			w.Full = true
			var wrong []string
			part := 0
			w.recorder.inputs = nil
			w.recorder.between = func() {
				part++
				for packet, fates := range w.fates() {
					for _, fate := range fates {
						if i > 0 && !eitherWay(fate, alone, packet) {
							wrong = append(wrong, fmt.Sprintf("part %d: %s: %s", part, packet, fate))
						}
					}
				}
			}
			w.Sync()
			w.recorder.between = nil
			if len(wrong) > 0 {
				slices.Sort(wrong)
				t.Fatalf("seed %d, to mode %s:\n%s\nalone: %v\n%s", seed, mode, strings.Join(wrong, "\n"), alone, strings.Join(w.recorder.inputs, "\n"))
			}
			if rng.IntN(2) == 0 {
				w.plane = w.newPlane()
			}
		}
	}
}

// eitherWay reports whether one of the modes does that with a packet, or rejects it
// in another way.
func eitherWay(fate string, alone map[v1alpha1.ProxyMode]map[string][]string, packet string) bool {
	rejected := func(f string) bool { return f == "DROP-M" || f == "REJECT-M" }
	for _, fates := range alone {
		if slices.Contains(fates[packet], fate) || rejected(fate) && slices.ContainsFunc(fates[packet], rejected) {
			return true
		}
	}
	return false
}
