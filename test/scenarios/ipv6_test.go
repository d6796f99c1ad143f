package scenarios

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// TestRowsInIPv6 runs the rows again with an IPv6 address in place of each IPv4
// address, but for those that are of one family alone.
func TestRowsInIPv6(t *testing.T) {
	ran := 0
	for _, r := range allRows() {
		r, ok := r.inIPv6()
		if !ok {
			continue
		}
		ran++
		t.Run(r.title(), func(t *testing.T) {
			w := newWorld(t, dataplane.IPv6)
			w.mapped = true
			w.setAddresses(addresses4...)
			r.runIn(w)
		})
	}
	if ran < 100 {
		t.Errorf("%d situations only", ran)
	}
	t.Logf("%d situations", ran)
}

// inIPv6 leaves out what is of one family alone: localhost, on which IPv6 node
// ports do not answer, and rows about the other family or about how IPv4
// addresses are written.
func (r *row) inIPv6() (*row, bool) {
	if r.ipv6 || r.only4 {
		return nil, false
	}
	c := *r
	c.when = slices.DeleteFunc(slices.Clone(r.when), func(x when) bool { return x.from == LO })
	return &c, len(c.when) > 0
}

var ipv4 = regexp.MustCompile(`\b(\d+)\.(\d+)\.(\d+)\.(\d+)(:\d+|/\d+)?`)

// toIPv6 puts an IPv6 address in place of each IPv4 address of a text, so that
// addresses of one range stay in one range.
func toIPv6(text string) string {
	return ipv4.ReplaceAllStringFunc(text, func(found string) string {
		m := ipv4.FindStringSubmatch(found)
		addr, err := netip.ParseAddr(strings.Join(m[1:5], "."))
		if err != nil {
			return found // is meant to be wrong
		}
		if m[5] == "/0" {
			return "::/0"
		}
		a := addr.As4()
		out := fmt.Sprintf("2001:db8:%x:%x:%x::%x", int(a[0])+1, int(a[1])+1, int(a[2])+1, a[3])
		switch {
		case strings.HasPrefix(m[5], ":"):
			return "[" + out + "]" + m[5]
		case strings.HasPrefix(m[5], "/"):
			return out + "/" + fmt.Sprint(prefixInIPv6(int(number32(m[5][1:]))))
		}
		return out
	})
}

// prefixInIPv6 is the length of a prefix once its addresses are mapped: each of
// the first three bytes has 16 bits, the last one the lowest 8.
func prefixInIPv6(length int) int {
	if length <= 24 {
		return 32 + length/8*16
	}
	return 120 + length - 24
}

// inIPv6 maps the addresses of an object.
func inIPv6[T any](t *testing.T, o *T) *T {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	out := new(T)
	if err := json.Unmarshal([]byte(toIPv6(string(text))), out); err != nil {
		t.Fatal(err)
	}
	return out
}

// mapObjects maps all objects and settings of the world, those that are mapped
// already too: they hold no IPv4 address any more.
func (w *world) mapObjects() {
	w.Helper()
	if d := w.Settings.DetectLocal; !strings.HasPrefix(strings.Join(d.ClusterCIDRs, " "), "2001:db8:") {
		d.ClusterCIDRs = slices.DeleteFunc(d.ClusterCIDRs, func(c string) bool { return strings.Contains(c, ":") })
	}
	w.Settings, w.Node = inIPv6(w.T, w.Settings), inIPv6(w.T, w.Node)
	for name, o := range w.services {
		o = inIPv6(w.T, o)
		o.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
		w.services[name] = o
	}
	for name, s := range w.slices {
		s = inIPv6(w.T, s)
		if s.AddressType == discoveryv1.AddressTypeIPv4 {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		w.slices[name] = s
	}
}

// Sync is that of World, with mapped objects.
func (w *world) Sync() {
	w.Helper()
	if w.mapped {
		w.mapObjects()
	}
	w.World.Sync()
}

// tr maps the addresses in a text where those of the world are mapped.
func (w *world) tr(text string) string {
	if w.mapped {
		return toIPv6(text)
	}
	return text
}

// setAddresses gives the node's interfaces addresses, mapped where those of the
// world are.
func (w *world) setAddresses(list ...netip.Addr) {
	var out []netip.Addr
	for _, a := range list {
		out = append(out, netip.MustParseAddr(w.tr(a.String())))
	}
	if w.nft != nil {
		w.nft.SetAddresses(out...)
		return
	}
	w.kernel.SetAddresses(out...)
}
