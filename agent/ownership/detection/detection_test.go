package detection

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// fakePlace is what exists on a node, by its human-readable name.
type fakePlace struct {
	things map[string]bool
	cilium string // "" : no agent answers; yes, no
	asked  int
	broken error
}

func (p *fakePlace) device(name string) (bool, error) {
	return p.things["device "+name], p.broken
}

func (p *fakePlace) table(family dataplane.Family, name string) (bool, error) {
	return p.things["table "+string(family)+" "+name], p.broken
}

func (p *fakePlace) canary(c Canary) (bool, error) { return p.things[c.String()], p.broken }

func (p *fakePlace) leads(address, device string) (bool, error) {
	return p.things["route "+address+" "+device], p.broken
}

func (p *fakePlace) ciliumReplaces(context.Context) (replaces, known bool) {
	p.asked++
	return p.cilium == "yes", p.cilium != ""
}

// newSpotter returns one over a fake, whose Remove removes what the fake does
// not keep.
func newSpotter(things ...string) (*Spotter, *fakePlace, *time.Time) {
	p, now := &fakePlace{things: map[string]bool{}}, time.Unix(1000, 0)
	for _, thing := range things {
		p.things[thing] = true
	}
	return &Spotter{place: p, former: map[string]bool{}, options: Options{
		Now: func() time.Time { return now },
		Remove: func(_ context.Context, canaries []Canary) error {
			for _, c := range canaries {
				delete(p.things, c.String())
			}
			return nil
		},
	}}, p, &now
}

func look(t *testing.T, s *Spotter) string {
	t.Helper()
	sign, err := s.OtherProxy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sign
}

func begin(t *testing.T, s *Spotter) []string {
	t.Helper()
	leftovers, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return leftovers
}

// TestWhatAppears: it shows a proxy if it comes while we write, and else is told
// as left behind, or removed.
func TestWhatAppears(t *testing.T) {
	for thing, stays := range map[string]bool{
		"device kube-ipvs0":     true,
		"table IPv4 kube-proxy": true,
		"table IPv6 kube-proxy": true,
		"chain KUBE-PROXY-CANARY in table mangle of IPv4 (nf_tables)": false,
		"chain KUBE-PROXY-CANARY in table filter of IPv6 (nf_tables)": false,
		"chain KUBE-PROXY-CANARY in table mangle of IPv6 (legacy)":    false,
	} {
		t.Run(thing, func(t *testing.T) {
			s, p, _ := newSpotter(thing)
			if sign := look(t, s); sign != "" {
				t.Errorf("before we write: %q", sign)
			}
			leftovers := begin(t, s)
			told := 0
			if stays && thing != "device kube-ipvs0" { // which the data plane takes over, or removes
				told = 1
			}
			if p.things[thing] != stays || len(leftovers) != told {
				t.Errorf("it is there: %v; leftovers %q", p.things[thing], leftovers)
			}
			if sign := look(t, s); sign != "" {
				t.Errorf("what was there before: %q", sign)
			}
			delete(p.things, thing)
			if sign := look(t, s); sign != "" {
				t.Errorf("nothing: %q", sign)
			}
			p.things[thing] = true
			if sign := look(t, s); !strings.Contains(sign, "has appeared, as created by kube-proxy") {
				t.Errorf("it has appeared: %q", sign)
			}
			s.End()
			if sign := look(t, s); sign != "" {
				t.Errorf("when we write no longer: %q", sign)
			}
		})
	}
}

// TestOwnDevice: we make kube-ipvs0 in mode IPVS, and remove it after that.
func TestOwnDevice(t *testing.T) {
	const device = "device kube-ipvs0"
	s, p, _ := newSpotter()
	ours := false
	s.options.OwnLink = func(name string) bool { return ours && name == "kube-ipvs0" }
	begin(t, s)
	for _, step := range []struct{ ours, there, shows bool }{
		{false, false, false},
		{true, false, false}, // about to be made
		{true, true, false},
		{false, true, false}, // not removed yet
		{false, false, false},
		{false, true, true},
		{true, true, false},
	} {
		ours, p.things[device] = step.ours, step.there
		if sign := look(t, s); (sign != "") != step.shows {
			t.Errorf("%+v: sign %q", step, sign)
		}
	}
}

// TestWhatStands shows a proxy whether we write or not, since when ever.
func TestWhatStands(t *testing.T) {
	for thing, who := range map[string]string{
		"device kube-dummy-if":           "kube-router",
		"device bpfin.cali":              "Calico",
		"device ovn-k8s-mp0":             "OVN-Kubernetes",
		"route 169.254.0.253 antrea-gw0": "Antrea",
	} {
		t.Run(thing, func(t *testing.T) {
			s, p, _ := newSpotter(thing)
			for _, when := range []func(){func() {}, func() { begin(t, s) }, s.End} {
				when()
				if sign := look(t, s); !strings.Contains(sign, who) || !strings.Contains(sign, "remove that with") {
					t.Errorf("%q does not name %s, or not what to do", sign, who)
				}
			}
			delete(p.things, thing)
			if sign := look(t, s); sign != "" {
				t.Errorf("it is gone: %q", sign)
			}
		})
	}
}

// TestNetworksAreNoProxies: pod networks that can run beside us.
func TestNetworksAreNoProxies(t *testing.T) {
	s, p, _ := newSpotter("device cilium_host", "device cilium_net", "device vxlan.calico", "device tunl0",
		"device antrea-gw0", "device kube-bridge", "device flannel.1", "device cni0", "table IPv4 calico", "table IPv4 other")
	p.cilium = "no"
	if sign := look(t, s); sign != "" {
		t.Errorf("sign %q", sign)
	}
	if leftovers := begin(t, s); len(leftovers) > 0 {
		t.Errorf("leftovers %q", leftovers)
	}
	if sign := look(t, s); sign != "" {
		t.Errorf("while we write: %q", sign)
	}
}

func TestCilium(t *testing.T) {
	s, p, now := newSpotter("device cilium_host")
	expect := func(when string, want bool) {
		t.Helper()
		if sign := look(t, s); strings.Contains(sign, "Cilium") != want {
			t.Errorf("%s: sign %q", when, sign)
		}
	}
	expect("no agent answers", false)
	p.cilium = "yes"
	expect("asked a moment ago", false)
	*now = now.Add(ciliumPause)
	expect("it replaces kube-proxy", true)
	for range 100 {
		expect("asked a moment ago", true)
	}
	if p.asked != 2 {
		t.Errorf("asked %d times", p.asked)
	}
	p.cilium = ""
	*now = now.Add(ciliumPause)
	expect("its agent is away for a moment", true)
	delete(p.things, "device cilium_host")
	*now = now.Add(ciliumPause)
	expect("it is gone", false)
	p.cilium = "yes"
	*now = now.Add(ciliumPause)
	expect("it is back", true)
	p.cilium = "no"
	*now = now.Add(ciliumPause)
	expect("it does not any more", false)
}

func TestBeginFailsWhereCanariesStay(t *testing.T) {
	const thing = "chain KUBE-PROXY-CANARY in table nat of IPv4 (nf_tables)"
	s, p, _ := newSpotter(thing)
	remove := s.options.Remove
	s.options.Remove = func(context.Context, []Canary) error { return errors.New("the lock is held") }
	if _, err := s.Begin(t.Context()); err == nil || !strings.Contains(err.Error(), "the lock is held") {
		t.Fatalf("error %v", err)
	}
	if sign := look(t, s); sign != "" {
		t.Errorf("it has begun: %q", sign)
	}
	// One that rules jump to.
	s.options.Remove = func(context.Context, []Canary) error { return nil }
	if leftovers := begin(t, s); len(leftovers) != 1 || !strings.Contains(leftovers[0], "unmanaged rules jump to it") {
		t.Errorf("leftovers %q", leftovers)
	}
	s.options.Remove = remove
	if leftovers := begin(t, s); len(leftovers) != 0 || p.things[thing] {
		t.Errorf("leftovers %q", leftovers)
	}
}

func TestSignsThatCannotBeRead(t *testing.T) {
	s, p, _ := newSpotter("device kube-dummy-if")
	p.broken, p.cilium = errors.New("no right"), "yes"
	sign, err := s.OtherProxy(t.Context())
	if err != nil || !strings.Contains(sign, "Cilium") {
		t.Errorf("what can be seen: %q, %v", sign, err)
	}
	p.cilium, s.ciliumAsked = "no", time.Time{}
	if sign, err := s.OtherProxy(t.Context()); err == nil || sign != "" {
		t.Errorf("got %q, %v", sign, err)
	}
	begin(t, s)
	if _, err := s.OtherProxy(t.Context()); err == nil {
		t.Error("no error")
	}
}

func TestEverySignSaysWhatToDo(t *testing.T) {
	var names []string
	for _, one := range all() {
		if one.what == "" || one.who == "" || (one.left == "") != (one.link != "") || slices.Contains(names, one.what) {
			t.Errorf("incomplete, or twice: %+v", one)
		}
		names = append(names, one.what)
	}
}
