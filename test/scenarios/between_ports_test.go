package scenarios

import (
	"strings"
	"testing"
)

// each traces a packet after each message to the kernel during a sync, and calls
// check with what may become of it.
func (w *world) each(from, to string, check func(fate string)) {
	w.Helper()
	w.recorder.inputs = nil
	w.recorder.between = func() {
		outcomes, err := w.kernel.Trace(w.packet(from, to))
		if err != nil {
			w.Fatal(err)
		}
		for _, o := range outcomes {
			check(outcomeText(&o))
		}
	}
	w.Sync()
	w.recorder.between = nil
}

// TestPortsComeToABoundAddress: a port that a Service gets on an address that is on
// kube-ipvs0 already is rejected until its endpoints have it. It is never one of the
// node's own servers.
func TestPortsComeToABoundAddress(t *testing.T) {
	for _, full := range []bool{false, true} {
		for _, from := range []string{POD, NODE, EXT} {
			w := newSteppedWorld(t)
			s := Service{CIP: "172.30.0.41", Ports: []string{"a:80"}, Endpoints: []string{"L 10.180.0.1"}}
			w.Add(s)
			w.Sync()
			s.Ports = []string{"a:80", "b:22=80"}
			w.Add(s)
			w.Full = full
			w.each(from, "172.30.0.41:22", func(fate string) {
				if strings.HasPrefix(fate, "PASS") {
					t.Errorf("full %t, %s: %s\n%s", full, from, fate, strings.Join(w.recorder.inputs, "\n"))
				}
			})
			w.sees(POD, "172.30.0.41:22", "10.180.0.1 -M")
		}
	}
}

// TestSourceRangesGo: while another Service has source ranges, so that the rules for
// them stay, those whom a Service lets in reach it all the time when its own go, and
// the node, which they keep out, does not reach a port that ends with them.
func TestSourceRangesGo(t *testing.T) {
	for _, full := range []bool{false, true} {
		start := func() (*world, Service) {
			w := newSteppedWorld(t)
			ranges := []string{"203.0.113.0/25"}
			s := Service{CIP: "172.30.0.41", VIPs: []string{"1.2.3.4"}, Ranges: ranges, Endpoints: []string{"L 10.180.0.1"}}
			w.Add(s, Service{Name: "other", CIP: "172.30.0.42", VIPs: []string{"1.2.3.5"}, Ranges: ranges, Endpoints: []string{"L 10.180.0.2"}})
			w.Sync()
			return w, s
		}
		w, s := start()
		w.sees(EXT, "1.2.3.4:80", "10.180.0.1 +M")
		s.Ranges = nil
		w.Add(s)
		w.Full = full
		w.each(EXT, "1.2.3.4:80", func(fate string) {
			if !strings.HasPrefix(fate, "10.180.0.1:") {
				t.Errorf("full %t: %s\n%s", full, fate, strings.Join(w.recorder.inputs, "\n"))
			}
		})
		w, s = start()
		w.sees(NODE, "1.2.3.4:80", "DROP")
		s.Ports = []string{"b:81"}
		w.Add(s)
		w.Full = full
		w.each(NODE, "1.2.3.4:80", func(fate string) {
			if strings.Contains(fate, ":") {
				t.Errorf("full %t: %s\n%s", full, fate, strings.Join(w.recorder.inputs, "\n"))
			}
		})
	}
}
