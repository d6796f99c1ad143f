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
	handle uint64 // of tables
	cilium string // "" : no agent answers; yes, no
	asked  int
	broken error
}

func (p *fakePlace) device(name string) (bool, error) {
	return p.things["device "+name], p.broken
}

func (p *fakePlace) table(family dataplane.Family, name string) (uint64, error) {
	if !p.things["table "+string(family)+" "+name] {
		return 0, p.broken
	}
	return p.handle, p.broken
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
	p, now := &fakePlace{things: map[string]bool{}, handle: 7}, time.Unix(1000, 0)
	for _, thing := range things {
		p.things[thing] = true
	}
	return &Spotter{place: p, former: map[string]uint64{}, options: Options{
		Now: func() time.Time { return now },
		Remove: func(_ context.Context, canaries []Canary) error {
			for _, c := range canaries {
				delete(p.things, c.String())
			}
			return nil
		},
	}}, p, &now
}

func detect(t *testing.T, s *Spotter) string {
	t.Helper()
	indicator, err := s.OtherProxy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return indicator
}

func begin(t *testing.T, s *Spotter) []string {
	t.Helper()
	leftovers, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return leftovers
}

// TestWhatAppears: it shows a proxy if it comes while we write, and else is named
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
			if indicator := detect(t, s); indicator != "" {
				t.Errorf("before we write: %q", indicator)
			}
			// Device and table: the data planes take them over, or remove them.
			if leftovers := begin(t, s); p.things[thing] != stays || len(leftovers) > 0 {
				t.Errorf("it is there: %v; leftovers %q", p.things[thing], leftovers)
			}
			if indicator := detect(t, s); indicator != "" {
				t.Errorf("what was there before: %q", indicator)
			}
			delete(p.things, thing)
			if indicator := detect(t, s); indicator != "" {
				t.Errorf("nothing: %q", indicator)
			}
			p.things[thing] = true
			if indicator := detect(t, s); !strings.Contains(indicator, "has appeared, as created by kube-proxy") {
				t.Errorf("it has appeared: %q", indicator)
			}
			s.End()
			if indicator := detect(t, s); indicator != "" {
				t.Errorf("when we write no longer: %q", indicator)
			}
		})
	}
}

// TestRecreatedTable: a kube-proxy makes its table again before anybody has seen it gone.
func TestRecreatedTable(t *testing.T) {
	s, p, _ := newSpotter("table IPv4 kube-proxy")
	begin(t, s)
	if indicator := detect(t, s); indicator != "" {
		t.Errorf("what was there before: %q", indicator)
	}
	p.handle++
	if indicator := detect(t, s); !strings.Contains(indicator, "nf_tables table ip kube-proxy has appeared") {
		t.Errorf("it was made again: %q", indicator)
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
		if indicator := detect(t, s); (indicator != "") != step.shows {
			t.Errorf("%+v: indicator %q", step, indicator)
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
				if indicator := detect(t, s); !strings.Contains(indicator, who) || !strings.Contains(indicator, "remove that with") {
					t.Errorf("%q does not name %s, or not what to do", indicator, who)
				}
			}
			delete(p.things, thing)
			if indicator := detect(t, s); indicator != "" {
				t.Errorf("it is gone: %q", indicator)
			}
		})
	}
}

// TestNetworksAreNoProxies: pod networks that can run beside us.
func TestNetworksAreNoProxies(t *testing.T) {
	s, p, _ := newSpotter("device cilium_host", "device cilium_net", "device vxlan.calico", "device tunl0",
		"device antrea-gw0", "device kube-bridge", "device flannel.1", "device cni0", "table IPv4 calico", "table IPv4 other")
	p.cilium = "no"
	if indicator := detect(t, s); indicator != "" {
		t.Errorf("indicator %q", indicator)
	}
	if leftovers := begin(t, s); len(leftovers) > 0 {
		t.Errorf("leftovers %q", leftovers)
	}
	if indicator := detect(t, s); indicator != "" {
		t.Errorf("while we write: %q", indicator)
	}
}

func TestCilium(t *testing.T) {
	s, p, now := newSpotter("device cilium_host")
	expect := func(when string, want bool) {
		t.Helper()
		if indicator := detect(t, s); strings.Contains(indicator, "Cilium") != want {
			t.Errorf("%s: indicator %q", when, indicator)
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
	if indicator := detect(t, s); indicator != "" {
		t.Errorf("it has begun: %q", indicator)
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

func TestIndicatorsThatCannotBeRead(t *testing.T) {
	s, p, _ := newSpotter("device kube-dummy-if")
	p.broken, p.cilium = errors.New("no right"), "yes"
	indicator, err := s.OtherProxy(t.Context())
	if err != nil || !strings.Contains(indicator, "Cilium") {
		t.Errorf("what can be seen: %q, %v", indicator, err)
	}
	p.cilium, s.ciliumAsked = "no", time.Time{}
	if indicator, err := s.OtherProxy(t.Context()); err == nil || indicator != "" {
		t.Errorf("got %q, %v", indicator, err)
	}
	begin(t, s)
	if _, err := s.OtherProxy(t.Context()); err == nil {
		t.Error("no error")
	}
}

func TestEveryIndicatorNamesARemedy(t *testing.T) {
	var names []string
	for _, one := range all() {
		ours := one.link != "" || strings.HasPrefix(one.what, "nf_tables table") // taken over, or removed
		if one.what == "" || one.who == "" || (one.left == "") != ours || slices.Contains(names, one.what) {
			t.Errorf("incomplete, or twice: %+v", one)
		}
		names = append(names, one.what)
	}
}
