package scenarios

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// row is one situation. Several rows may share a number: variants of one.
type row struct {
	n        int
	given    string
	ipv6     bool // of IPv6 alone
	only4    bool // of IPv4 alone
	settings func(*v1alpha1.ProxySettings)
	// setup changes the world before Services are added.
	setup func(*world)
	svcs  []Service
	when  []when
	// then is what else is to be seen, or happens next.
	then func(*world)
}

// when states what becomes of packets: each of the senders to each of the
// destinations, both separated by spaces.
type when struct{ from, to, want string }

// The numbers of the rows. 1 to 103 are of packets, 128 to 133 of what is
// merged, 136 of an endpoint that comes. The others in between are of other modes
// of kube-proxy, of health checks and of how its rules are written;
// docs/parity.md describes those that concern iptables.
func numbers() []int {
	var out []int
	for n := 1; n <= 103; n++ {
		out = append(out, n)
	}
	for n := 128; n <= 133; n++ {
		out = append(out, n)
	}
	return append(out, 136)
}

func TestRows(t *testing.T) {
	rows := allRows()
	seen := map[int]bool{}
	for _, r := range rows {
		seen[r.n] = true
		t.Run(r.title(), func(t *testing.T) { r.run(t) })
	}
	for _, n := range numbers() {
		if !seen[n] {
			t.Errorf("row %03d is missing", n)
		}
		delete(seen, n)
	}
	for n := range seen {
		t.Errorf("row %03d is not one of the numbers", n)
	}
	t.Logf("%d rows, %d situations", len(numbers()), len(rows))
}

func allRows() []row {
	return slices.Concat(clusterIPRows(), noEndpointRows(), externalClusterRows(), externalLocalRows(),
		internalLocalRows(), terminatingRows(), sourceRangeRows(), nodePortRows(), topologyRows(), mergeRows())
}

func (r *row) title() string { return fmt.Sprintf("row %03d %s", r.n, r.given) }

func (r *row) run(t *testing.T) {
	if len(r.when) == 0 && r.then == nil {
		t.Fatal("nothing is asserted")
	}
	family := dataplane.IPv4
	if r.ipv6 {
		family = dataplane.IPv6
	}
	r.runIn(newWorld(t, family))
}

func (r *row) runIn(w *world) {
	if r.settings != nil {
		w.Settings = v1alpha1.CompleteSettings(w.Settings)
		r.settings(w.Settings)
	}
	if r.setup != nil {
		r.setup(w)
	}
	w.Add(r.svcs...)
	w.Sync()
	w.all(r.when)
	if r.then != nil {
		r.then(w)
	}
}

func (w *world) all(list []when) {
	w.Helper()
	for _, x := range list {
		for from := range strings.FieldsSeq(x.from) {
			for to := range strings.FieldsSeq(x.to) {
				w.sees(from, to, x.want)
			}
		}
	}
}

// removeSlices deletes all EndpointSlices, and syncs.
func (w *world) removeSlices() {
	w.Helper()
	clear(w.slices)
	w.Sync()
}

// holds checks whether some rule of either table holds a text. It is about mode
// IPTables, where endpoints have rules.
func (w *world) holds(text string, want bool) {
	w.Helper()
	if w.ipvs != nil || w.nft != nil || w.proxy != nil {
		return
	}
	text = w.tr(text)
	if strings.Contains(w.save(), text) != want {
		w.Errorf("rules hold %q: %t, want %t:\n%s", text, !want, want, w.save())
	}
}

// Settings.
func noDetector(s *v1alpha1.ProxySettings) {
	s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalNone}
}

func masqueradeAll(s *v1alpha1.ProxySettings) { *s.Masquerade.All = v1alpha1.Enabled }

func noLocalhost(s *v1alpha1.ProxySettings) { *s.NodePorts.Localhost = v1alpha1.Disabled }

func primary(s *v1alpha1.ProxySettings) { *s.NodePorts.AddressMode = v1alpha1.NodePortsPrimary }

func nodePortCIDRs(cidrs ...string) func(*v1alpha1.ProxySettings) {
	return func(s *v1alpha1.ProxySettings) {
		*s.NodePorts.AddressMode, s.NodePorts.CIDRs = v1alpha1.NodePortsCIDRs, cidrs
	}
}

func both(a, b func(*v1alpha1.ProxySettings)) func(*v1alpha1.ProxySettings) {
	return func(s *v1alpha1.ProxySettings) { a(s); b(s) }
}
