package render

import (
	"fmt"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestSizeOfAddressesAndEndpoints: each address has all endpoints, which is counted before anything
// is rendered.
func TestSizeOfAddressesAndEndpoints(t *testing.T) {
	svc := service()
	svc.Spec.ExternalIPs = make([]string, v1alpha1.MaxServiceAddresses)
	for n, want := range map[int]string{
		99:  "",
		100: "it has 100100 combinations of a port with an endpoint and a cluster, external or load-balancer IP, more than the limit of 100000; split the Service or remove addresses",
	} {
		s := slice("s")
		for i := range n {
			s.Endpoints = append(s.Endpoints, endpoint(fmt.Sprintf("10.0.0.%d", i)))
		}
		if _, got := Size(svc, []*discoveryv1.EndpointSlice{s}).Excess(); got != want {
			t.Errorf("%d endpoints: %q, want %q", n, got, want)
		}
	}
}

// TestEmptySlices: slices count although they have no endpoints, and nothing of them is read.
func TestEmptySlices(t *testing.T) {
	empty := slice("empty")
	empty.Ports = make([]discoveryv1.EndpointPort, 20_000)
	many := []*discoveryv1.EndpointSlice{empty, empty, empty, empty, empty}
	if OverLimit(many) || !OverLimit(append(many, slice("one"))) {
		t.Error("the limit of ports is not that of all slices together")
	}
	for n, want := range map[int]bool{v1alpha1.MaxServiceSlices: false, v1alpha1.MaxServiceSlices + 1: true} {
		if got := OverLimit(slices.Repeat([]*discoveryv1.EndpointSlice{slice("s")}, n)); got != want {
			t.Errorf("%d slices: over a limit: %v", n, got)
		}
	}
	if _, problems := Service(service(), many, Shape{}, Cluster{}, 1); len(problems) > 0 {
		t.Errorf("ports of slices without endpoints are problems: %v", problems[0])
	}
	allocated := testing.AllocsPerRun(1, func() {
		endpointsOn("n1", many)
		NodesAffected(empty, empty, many)
	})
	if allocated > 100 {
		t.Errorf("the ports of slices without endpoints cost %v allocations", allocated)
	}
}

// TestMaxProblems: the same few problems are named, in whatever order many are found.
func TestMaxProblems(t *testing.T) {
	s := slice("s")
	for i := range 1000 {
		s.Endpoints = append(s.Endpoints, endpoint(fmt.Sprintf("bogus-%03d", 999-i)))
	}
	_, problems := Service(service(), []*discoveryv1.EndpointSlice{s}, Shape{}, Cluster{}, 1)
	if len(problems) != MaxProblems {
		t.Fatalf("%d problems, want %d", len(problems), MaxProblems)
	}
	for i, p := range problems {
		if want := fmt.Sprintf("bogus-%03d", i); p.Address != want {
			t.Errorf("problem %d has the address %q, want %q", i, p.Address, want)
		}
	}
}

// TestPaceOfAddresses: few endpoints at many addresses are many real servers.
func TestPaceOfAddresses(t *testing.T) {
	rules := &v1alpha1.ServiceProxyRulesSpec{
		ExternalIPs: make([]string, 99),
		Ports:       []v1alpha1.ServicePort{{Endpoints: []v1alpha1.EndpointGroup{{Addresses: make([]string, 50)}}}},
	}
	if got := Pace(LoadOf(rules, 0)); got != hugeInterval {
		t.Errorf("5,000 real servers are written every %v, want %v", got, hugeInterval)
	}
}
