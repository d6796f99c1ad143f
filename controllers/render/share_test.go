package render

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// sizedService is namespace/name whose local endpoints take so many bytes.
func sizedService(service string, bytes int) weighed {
	namespace, name, _ := strings.Cut(service, "/")
	return weighed{ServiceSlices: &ServiceSlices{Service: types.NamespacedName{Namespace: namespace, Name: name}}, bytes: bytes}
}

// missing are those, of a node that does not carry them.
func missing(s weighed) weighed {
	s.absent = true
	return s
}

func outOf(all []weighed) (out []string) {
	_, list := share(all)
	for _, l := range list {
		out = append(out, l.Service.String())
	}
	return out
}

func TestShare(t *testing.T) {
	const k = 1 << 10
	name := func(namespace string, i int) string { return fmt.Sprintf("%s/s%03d", namespace, i) }
	crowd := func(namespace string, n, bytes int) (all []weighed) {
		for i := range n {
			all = append(all, sizedService(name(namespace, i), bytes))
		}
		return all
	}
	others := func(namespaces, bytes int) (all []weighed) {
		for i := range namespaces {
			all = append(all, sizedService(fmt.Sprintf("o%d/x", i), bytes))
		}
		return all
	}
	last := func(namespace string, few, of int) (out []string) {
		for i := of - few; i < of; i++ {
			out = append(out, name(namespace, i))
		}
		return out
	}
	for name, c := range map[string]struct {
		all  []weighed
		want []string
	}{
		"nothing": {},
		"a namespace at its limit": {
			all: []weighed{sizedService("a/x", 64*k), sizedService("a/y", 64*k), sizedService("b/y", 128*k)},
		},
		"one Service over the limit of a namespace": {
			all:  []weighed{sizedService("a/x", 128*k+1), sizedService("a/y", k), sizedService("b/y", k)},
			want: []string{"a/x"},
		},
		"the largest of a namespace": {
			all:  []weighed{sizedService("a/x", 60*k), sizedService("a/y", 50*k), sizedService("a/z", 40*k), sizedService("b/z", 90*k)},
			want: []string{"a/x"},
		},
		"one of equal ones, by name": {
			all:  []weighed{sizedService("a/x", 50*k), sizedService("a/y", 50*k), sizedService("a/z", 50*k)},
			want: []string{"a/z"},
		},
		"many small ones": {
			all:  append(crowd("evil", 200, 6*k), sizedService("shop/large", 50*k)),
			want: last("evil", 179, 200), // 21 * 6 KiB = 126 KiB
		},
		"one that is carried and would be next stays": {
			all: []weighed{sizedService("a/x", 70*k), sizedService("a/y", 55*k)},
		},
		"one that is not carried waits for an eighth of the limit": {
			all:  []weighed{missing(sizedService("a/x", 64*k)), sizedService("a/y", 50*k)},
			want: []string{"a/x"},
		},
		"until that is free": {
			all: []weighed{missing(sizedService("a/x", 64*k)), sizedService("a/y", 48*k)},
		},
		"two of about the same size do not alternate": {
			all:  []weighed{missing(sizedService("a/x", 64*k)), sizedService("a/y", 66*k)},
			want: []string{"a/x"},
		},
		"a much smaller one comes in": {
			all:  []weighed{missing(sizedService("a/x", 56*k)), sizedService("a/y", 68*k)},
			want: []string{"a/y"},
		},
		"a node at its limit": {all: others(8, 120*k)},
		"a node over its limit, of equal namespaces by name": {
			all:  others(9, 120*k),
			want: []string{"o8/x"},
		},
		"a node over its limit, the largest of the largest namespace": {
			all:  append(others(8, 110*k), sizedService("a/x", 60*k), sizedService("a/y", 65*k)),
			want: []string{"a/y"},
		},
		"a newcomer of a small namespace on a full node": {
			all:  append(others(8, 120*k), missing(sizedService("p/x", 20*k))),
			want: []string{"o7/x"},
		},
		"a newcomer of the largest namespace on a full node": {
			all:  append(others(8, 98*k), missing(sizedService("p/x", 99*k))),
			want: []string{"p/x"},
		},
		"a newcomer of the largest namespace once an eighth is free": {
			all: append(others(8, 90*k), missing(sizedService("p/x", 99*k))),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, outOf(c.all)); diff != "" {
				t.Errorf("left out (-want +got):\n%s", diff)
			}
		})
	}
}

// randomServices are of some namespaces, and take more than a node carries about every other time.
func randomServices(random *rand.Rand) (all []weighed, namespaces int) {
	namespaces = 1 + random.IntN(20)
	n := 1 + random.IntN(60)
	for i := range n {
		bytes := 1 + random.IntN(2*v1alpha1.MaxNodeLocalBytes/n)
		all = append(all, sizedService(fmt.Sprintf("n%d/s%d", random.IntN(namespaces), i), bytes))
	}
	return all, namespaces
}

// stored marks what is left out as absent from what is stored, if anything is.
func stored(all []weighed, leftOut []LeftOut) []weighed {
	out := map[types.NamespacedName]bool{}
	for _, l := range leftOut {
		out[l.Service] = true
	}
	all = slices.Clone(all)
	for i := range all {
		all[i].absent = len(out) < len(all) && out[all[i].Service]
	}
	return all
}

// Whatever there is: what is carried is within the limit, no namespace with less than its part
// loses anything, and the same input gives the same, also from what was stored.
// TestPolicyLocalIsLeftOutLast, however large it is, and comes in for one without.
func TestPolicyLocalIsLeftOutLast(t *testing.T) {
	const k = 1 << 10
	local := sizedService("shop/local", 20*k)
	local.Local = true
	all := []weighed{local}
	for i := range 12 {
		all = append(all, sizedService(fmt.Sprintf("shop/s%d", i), 10*k))
	}
	for _, first := range []weighed{local, missing(local)} {
		all[0] = first
		if out := outOf(all); slices.Contains(out, "shop/local") || len(out) != 2 {
			t.Errorf("absent %t: left out %q", first.absent, out)
		}
	}
	large := sizedService("shop/z", 120*k)
	large.Local = true
	if out := outOf([]weighed{local, large, sizedService("shop/s", k)}); !slices.Equal(out, []string{"shop/s", "shop/z"}) {
		t.Errorf("two of policy Local: left out %q", out)
	}
}

func TestShareHolds(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	over, nodeLimits := 0, 0
	for range 3000 {
		all, namespaces := randomServices(random)
		carried, leftOut := share(all)
		total, of, carriedOf := 0, map[string]int{}, map[string]int{}
		for _, s := range carried {
			total += s.bytes
			carriedOf[s.Service.Namespace] += s.bytes
		}
		for namespace, bytes := range carriedOf {
			if bytes > v1alpha1.MaxNamespaceLocalBytes {
				t.Fatalf("%d bytes of namespace %s are carried", bytes, namespace)
			}
		}
		for _, s := range all {
			of[s.Service.Namespace] += s.bytes
		}
		if total > v1alpha1.MaxNodeLocalBytes || len(carried)+len(leftOut) != len(all) {
			t.Fatalf("%d bytes are carried, of %d Services %d and %d", total, len(all), len(carried), len(leftOut))
		}
		if len(leftOut) > 0 {
			over++
		}
		// What is stored may be anything.
		mixed := slices.Clone(all)
		for i := range mixed {
			mixed[i].absent = random.IntN(2) == 0
		}
		_, first := share(mixed)
		_, second := share(stored(mixed, first))
		if diff := cmp.Diff(first, second); diff != "" {
			t.Fatalf("decided again, after something else was stored (-first +second):\n%s", diff)
		}
		for _, l := range leftOut {
			least := returnBytes(v1alpha1.MaxNamespaceLocalBytes)
			if l.Limit == v1alpha1.MaxNodeLocalBytes {
				nodeLimits++
				least = returnBytes(v1alpha1.MaxNodeLocalBytes) / namespaces
			}
			if of[l.Service.Namespace] < least {
				t.Fatalf("%s loses a Service with %d bytes, one of %d", l.Service.Namespace, of[l.Service.Namespace], namespaces)
			}
		}
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		_, again := share(stored(all, leftOut))
		if diff := cmp.Diff(leftOut, again); diff != "" {
			t.Fatalf("rendered again from what is stored (-first +second):\n%s", diff)
		}
	}
	if over < 1000 || nodeLimits < 100 {
		t.Errorf("only %d of 3000 are over a limit, %d Services over that of the node", over, nodeLimits)
	}
}

// While sizes change a little, Services do not alternate.
func TestShareDoesNotFlap(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	for range 500 {
		all, _ := randomServices(random)
		states := [2][]weighed{all, slices.Clone(all)}
		for i := range all {
			states[1][i].bytes += all[i].bytes * (random.IntN(5) - 2) / 100
		}
		var leftOut []LeftOut
		settled := 0
		for i := range 20 {
			_, next := share(stored(states[i%2], leftOut))
			if slices.EqualFunc(leftOut, next, func(a, b LeftOut) bool { return a.Service == b.Service }) {
				settled++
			} else if settled > 2 {
				t.Fatalf("step %d: left out %v, then %v", i, leftOut, next)
			}
			leftOut = next
		}
		if settled < 16 {
			t.Fatalf("%d of 20 steps changed nothing", settled)
		}
	}
}

// onePod is a pod of n1 behind many Services of a namespace with many ports each.
func onePod(namespace string, services, ports int) (out []ServiceSlices) {
	for i := range services {
		s := slice("s", endpoint("10.9.0.1", on("n1")))
		s.Ports = nil
		for p := range ports {
			s.Ports = append(s.Ports, slicePortOf(fmt.Sprintf("port-%02d", p), int32(8000+p))) //nolint:gosec // small
		}
		out = append(out, ServiceSlices{
			Service: types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("s%03d", i)}, Slices: []*discoveryv1.EndpointSlice{s},
		})
	}
	return out
}

// One pod behind 270 Services of 100 ports in nine namespaces takes nothing from others, and an object of the largest
// size is less than 1 MiB.
func TestLocalEndpointsOfACrowdedNode(t *testing.T) {
	large := slice("large")
	for i := range 400 {
		large.Endpoints = append(large.Endpoints, endpoint(fmt.Sprintf("10.1.%d.%d", i/250, i%250), on("n1")))
	}
	var input []ServiceSlices
	for i := range 9 {
		input = append(input, onePod(fmt.Sprintf("evil-%d", i), 30, 100)...)
	}
	input = append(input, cart(large)...)
	got := LocalEndpoints("n1", input, nil)
	if len(got.LeftOut) == 0 || !strings.HasPrefix(got.LeftOut[0].Service.Namespace, "evil") || got.Bytes > v1alpha1.MaxNodeLocalBytes {
		t.Fatalf("%d left out, %d bytes", len(got.LeftOut), got.Bytes)
	}
	last := got.Services[len(got.Services)-1]
	if last.Name != "cart" || len(last.Ports[0].Endpoints) != 400 {
		t.Errorf("shop/cart has not all its endpoints: %s", last.Name)
	}
	if len(got.Services)+len(got.LeftOut) != len(input) {
		t.Errorf("%d carried, %d left out of %d", len(got.Services), len(got.LeftOut), len(input))
	}
	spec := v1alpha1.NodeProxyRulesSpec{LocalEndpoints: got.Services}
	text, err := json.Marshal(&spec)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 1<<20 || len(text) < v1alpha1.MaxNodeLocalBytes*9/10 {
		t.Errorf("%d bytes", len(text))
	}
	if again := LocalEndpoints("n1", input, got.Services); !cmp.Equal(got, again) {
		t.Error("rendered again it is otherwise")
	}
	if again := LocalEndpoints("n1", input[270:], got.Services); len(again.LeftOut) > 0 || len(again.Services) != 1 {
		t.Errorf("once the crowd is gone: %v", again)
	}
	if again := LocalEndpoints("n1", append(input[:10:10], cart(large)...), got.Services); len(again.LeftOut) > 0 || len(again.Services) != 11 {
		t.Errorf("once there is room: %d carried", len(again.Services))
	}
}

// What is counted is at least what is stored, and not much more.
func TestBytesAreBounded(t *testing.T) {
	v6 := slice("six", endpoint("fd00:1:2:3:4:5:6:7", on("n1")), endpoint("2001:0db8::0001", on("n1")), endpoint("not-an-address", on("n1")))
	v6.AddressType = discoveryv1.AddressTypeIPv6
	for name, of := range map[string][]*discoveryv1.EndpointSlice{
		"one":           {slice("a", endpoint("10.0.0.1", on("n1")))},
		"none":          {slice("a", endpoint("10.0.0.1", on("n2")))},
		"both families": {slice("a", endpoint("10.0.0.1", on("n1"))), v6},
		"many ports":    onePod("shop", 1, 100)[0].Slices,
		"many":          crowd(5000),
	} {
		node := "n1"
		if name == "many" {
			node = "node-0"
		}
		in := ServiceSlices{Service: types.NamespacedName{Namespace: "shop", Name: "cart"}, Slices: of}
		actual := 0
		if entries := LocalEndpoints(node, []ServiceSlices{in}, nil).Services; len(entries) > 0 {
			text, err := json.Marshal(&entries[0])
			if err != nil {
				t.Fatal(err)
			}
			actual = len(text) + 1 // and a comma
			if got := entries[0].MaxBytes(); got < actual || got > actual*11/10 {
				t.Errorf("%s: stored %d bytes, counted %d", name, actual, got)
			}
		}
		if got := localBytes(node, &in); got < actual || got > actual*5/4 {
			t.Errorf("%s: %d bytes, counted %d", name, actual, got)
		}
	}
}

func TestWhy(t *testing.T) {
	for want, out := range map[string]LeftOut{
		"they take 600000 bytes, more than the limit of 131072 for one namespace on one node":                                     {Bytes: 600000, Limit: v1alpha1.MaxNamespaceLocalBytes},
		"those of its namespace there exceed the limit of 131072 bytes, or are less than an eighth below it (this Service: 6000)": {Bytes: 6000, Limit: v1alpha1.MaxNamespaceLocalBytes},
		"those of all Services there exceed the limit of 983040 bytes, and its namespace takes the most (this Service: 6000)":     {Bytes: 6000, Limit: v1alpha1.MaxNodeLocalBytes},
	} {
		if got := out.Why(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestPace(t *testing.T) {
	for _, c := range []struct {
		load Load
		want string
	}{
		{Load{}, "0s"}, {Load{500, 5000, 16 << 10}, "0s"}, {Load{Bytes: 32 << 10}, "250ms"}, {Load{501, 501, 32 << 10}, "1s"},
		{Load{Endpoints: 2001, Bytes: 512 << 10}, "5s"}, {Load{Endpoints: 100, Combinations: 5001}, "5s"}, {Load{Bytes: 1 << 20}, "8s"}, {Load{20_000, 20_000, 1 << 20}, "8s"},
	} {
		if got := Pace(c.load).String(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.load, got, c.want)
		}
	}
}

// TestPaceOfSourceRanges: each is an entry of an ipset for each port and load-balancer IP.
func TestPaceOfSourceRanges(t *testing.T) {
	rules := &v1alpha1.ServiceProxyRulesSpec{
		Ports: make([]v1alpha1.ServicePort, 1), LoadBalancerIPs: make([]string, 200), LoadBalancerSourceRanges: make([]string, 200),
	}
	if got := Pace(LoadOf(rules, 0)); got != hugeInterval {
		t.Errorf("40,000 entries in ipsets are written every %v, want %v", got, hugeInterval)
	}
}

// TestSizeOfSourceRanges: they are counted before anything is expanded.
func TestSizeOfSourceRanges(t *testing.T) {
	svc := &corev1.Service{Spec: corev1.ServiceSpec{Ports: make([]corev1.ServicePort, 5), LoadBalancerSourceRanges: make([]string, 500)}}
	for _, c := range []struct {
		balancers int
		want      string
	}{{4, ""}, {5, "it has 12500 combinations of a port with a load-balancer IP and a source range, more than the limit of 10000; split the Service or merge its source ranges"}} {
		svc.Status.LoadBalancer.Ingress = make([]corev1.LoadBalancerIngress, c.balancers)
		if _, got := Size(svc, nil).Excess(); got != c.want {
			t.Errorf("%d load-balancer IPs: %q, want %q", c.balancers, got, c.want)
		}
	}
}
