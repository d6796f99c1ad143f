package scenarios

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// good is a Service that must be served whatever is wrong beside it.
var good = Service{Name: "good", CIP: "172.30.0.99", Endpoints: []string{"L 10.180.9.9"}}

func (w *world) goodIsServed() {
	w.Helper()
	w.sees(POD, "172.30.0.99:80", "10.180.9.9 -M")
}

// TestClusterIPOfTheWrongFamily: a cluster IP counts only for the family that
// stands at its place.
func TestClusterIPOfTheWrongFamily(t *testing.T) {
	w := newWorld(t, dataplane.IPv4)
	w.Add(good,
		Service{Name: "wrong", CIP: "172.30.0.41", NP: 3001, VIPs: []string{"1.2.3.4"}, Endpoints: []string{"L 10.180.0.1"}, Edit: func(o *corev1.Service) {
			o.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
		}},
		Service{Name: "half", CIP: "172.30.0.42", Endpoints: []string{"L 10.180.0.2"}, Edit: func(o *corev1.Service) {
			o.Spec.ClusterIPs = []string{"172.30.0.42", "172.30.0.43"}
			o.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		}})
	w.Sync()
	w.goodIsServed()
	w.sees(POD, "172.30.0.41:80", "PASS")
	w.sees(EXT, "1.2.3.4:80", "PASS")
	w.sees(EXT, "192.168.0.2:3001", "PASS")
	w.sees(POD, "172.30.0.42:80", "10.180.0.2 -M")
	w.sees(POD, "172.30.0.43:80", "PASS")
}

// TestEndpointInManySlices: an endpoint that many slices name has its share once,
// and lives on the node that the winning slice names.
func TestEndpointInManySlices(t *testing.T) {
	w := newWorld(t, dataplane.IPv4)
	s := Service{CIP: "172.30.0.41", VIPs: []string{"1.2.3.4"}, ETPLocal: true}
	w.Add(good, s)
	for i := range 5 {
		slice := s.slice(fmt.Sprint(i), discoveryv1.AddressTypeIPv4)
		slice.Endpoints = []discoveryv1.Endpoint{
			endpointOf("L 10.180.0.1"), endpointOf("R 10.180.1.1"), endpointOf("L 10.180.0.1"), endpointOf("R 10.180.2.1"),
		}
		if i > 0 { // addresses that were another node's before, and this node's
			slice.Endpoints[0], slice.Endpoints[3] = endpointOf("R 10.180.0.1 T"), endpointOf("L 10.180.2.1 T")
		}
		w.addSlices(slice)
	}
	w.Sync()
	w.goodIsServed()
	w.sees(POD, "172.30.0.41:80", "10.180.0.1 10.180.1.1 10.180.2.1 -M")
	w.sees(EXT, "1.2.3.4:80", "10.180.0.1 -M")
	if n := strings.Count(w.save(), "--to-destination 10.180.0.1:80"); n != 1 {
		t.Errorf("the endpoint has %d chains", n)
	}
}

// TestTwoThousandEndpoints: each of very many endpoints has the same share.
func TestTwoThousandEndpoints(t *testing.T) {
	w := newWorld(t, dataplane.IPv4)
	s := Service{CIP: "172.30.0.41"}
	var all []string
	for i := range 2000 {
		a := fmt.Sprintf("10.180.%d.%d", i/200, i%200+1)
		s.Endpoints = append(s.Endpoints, "R "+a)
		all = append(all, a)
	}
	w.Add(good, s)
	w.Sync()
	w.goodIsServed()
	w.sees(POD, "172.30.0.41:80", strings.Join(all, " ")+" -M")
}

// TestNamesOfGreatestLength: names of chains and comments stay within what the
// kernel takes, or the model would reject them.
func TestNamesOfGreatestLength(t *testing.T) {
	for _, local := range []bool{false, true} {
		w := newWorld(t, dataplane.IPv4)
		w.Add(good, Service{
			Name: strings.Repeat("s", 63), CIP: "172.30.0.41", XIPs: []string{"192.168.99.11"}, VIPs: []string{"1.2.3.4"}, NP: 3001,
			Ranges: []string{"203.0.113.0/25"}, ETPLocal: local, HCNP: 30000, Affinity: 3 * time.Hour,
			Ports: []string{strings.Repeat("p", 63) + ":80"}, Endpoints: []string{"L 10.180.0.1"},
			Edit: func(o *corev1.Service) { o.Namespace = strings.Repeat("n", 63) },
		})
		for _, s := range w.slices {
			if s.Name != "good-ipv4" {
				s.Namespace = strings.Repeat("n", 63)
			}
		}
		w.Sync()
		w.goodIsServed()
		w.sees(POD, "172.30.0.41:80", "10.180.0.1 -M")
		want := "10.180.0.1 +M"
		if local {
			want = "10.180.0.1 -M"
		}
		w.sees(EXT, "1.2.3.4:80", want)
	}
}

// TestSourceRangesThatCannotBeUsed: they restrict no client, and that is reported.
// Ranges beside them count.
func TestSourceRangesThatCannotBeUsed(t *testing.T) {
	for _, c := range []struct {
		ranges   []string
		blocked  string
		problems int
	}{
		{[]string{"everybody"}, "10.180.0.1 +M", 2},
		{[]string{"2001:db8::/32"}, "10.180.0.1 +M", 1},
		{[]string{"everybody", "203.0.113.0/25"}, "DROP", 1},
		{[]string{"203.0.113.000/025"}, "DROP", 0},
	} {
		w := newWorld(t, dataplane.IPv4)
		s := Service{CIP: "172.30.0.41", VIPs: []string{"1.2.3.4"}, Ranges: c.ranges, Endpoints: []string{"L 10.180.0.1"}}
		w.Add(good, s)
		w.Sync()
		w.goodIsServed()
		w.sees(EXT, "1.2.3.4:80", "10.180.0.1 +M")
		w.sees(BLK, "1.2.3.4:80", c.blocked)
		if problems := render.SourceRangeProblems(s.object()); len(problems) != c.problems {
			t.Errorf("%q: problems %q, want %d", c.ranges, problems, c.problems)
		}
	}
}
