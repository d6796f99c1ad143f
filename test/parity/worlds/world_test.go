package worlds

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestSeedRepeatsWorld draws worlds twice, with all changes.
func TestSeedRepeatsWorld(t *testing.T) {
	for seed := range uint64(20) {
		a, b := New(seed), New(seed)
		for range 30 {
			if x, y := a.Change(), b.Change(); x != y {
				t.Fatalf("seed %d: %q and %q", seed, x, y)
			}
		}
		servicesA, slicesA := a.Objects()
		servicesB, slicesB := b.Objects()
		if diff := cmp.Diff(servicesA, servicesB) + cmp.Diff(slicesA, slicesB); diff != "" {
			t.Fatalf("seed %d:\n%s", seed, diff)
		}
	}
}

// TestNothingUndefined makes sure that worlds hold nothing that kube-proxy
// leaves to chance, however long they go on.
func TestNothingUndefined(t *testing.T) {
	for seed := range uint64(200) {
		w := New(seed)
		for range 30 {
			done := w.Change()
			services, endpointSlices := w.Objects()
			claimed := map[string]string{}
			for key, s := range services {
				for _, c := range claims(s) {
					if other := claimed[c]; other != "" {
						t.Fatalf("seed %d, %s: %s and %s claim %s", seed, done, key, other, c)
					}
					claimed[c] = key
				}
			}
			undefinedEndpoints(t, endpointSlices)
		}
	}
}

// claims are the addresses, ports and protocols that a Service answers on.
func claims(s *corev1.Service) []string {
	var out []string
	ips := slices.Clone(s.Spec.ExternalIPs)
	for _, ip := range s.Spec.ClusterIPs {
		if ip != corev1.ClusterIPNone {
			ips = append(ips, ip)
		}
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		// One that is an external IP as well is defined.
		if i.IP != "" && !slices.Contains(ips, i.IP) {
			ips = append(ips, i.IP)
		}
	}
	for _, p := range s.Spec.Ports {
		for _, ip := range ips {
			out = append(out, fmt.Sprint(ip, p.Port, p.Protocol))
		}
		if p.NodePort != 0 {
			out = append(out, fmt.Sprint("node", p.NodePort, p.Protocol))
		}
	}
	if s.Spec.HealthCheckNodePort != 0 {
		out = append(out, fmt.Sprint("node", s.Spec.HealthCheckNodePort, corev1.ProtocolTCP))
	}
	return out
}

// undefinedEndpoints looks for two entries of one endpoint of which none wins.
func undefinedEndpoints(t *testing.T, endpointSlices map[string]*discoveryv1.EndpointSlice) {
	t.Helper()
	type key struct{ service, address string }
	lasting, leaving := map[key]discoveryv1.Endpoint{}, map[key]discoveryv1.Endpoint{}
	for name, s := range endpointSlices {
		for _, e := range s.Endpoints {
			k := key{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName], e.Addresses[0]}
			seen := lasting
			if isTrue(e.Conditions.Terminating) {
				seen = leaving
			}
			if other, ok := seen[k]; ok {
				if diff := cmp.Diff(other, e); diff != "" {
					t.Fatalf("%s: two entries for %v:\n%s", name, k, diff)
				}
			}
			seen[k] = e
		}
	}
}

// TestVariety counts what worlds are made of, so that a slip of the generator
// cannot leave a kind out.
func TestVariety(t *testing.T) {
	seen := map[string]int{}
	count := func(what string, is bool) {
		if is {
			seen[what]++
		} else {
			seen[what] += 0
		}
	}
	for seed := range uint64(40) {
		w := New(seed + 1)
		w.ChangeZone()
		for range 10 {
			w.Change()
		}
		count("detect local "+string(w.Settings.detectLocal), true)
		count("node ports "+string(w.Settings.nodePorts), true)
		count("no zone", w.Node.zone == "")
		services, endpointSlices := w.Objects()
		for _, s := range services {
			count("type "+string(s.Spec.Type), true)
			count("families "+fmt.Sprint(len(s.Spec.IPFamilies)), true)
			count("headless", s.Spec.ClusterIP == corev1.ClusterIPNone)
			count("affinity", s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP)
			count("source ranges", len(s.Spec.LoadBalancerSourceRanges) > 0)
			count("external IP that is the load balancer's", slices.ContainsFunc(s.Status.LoadBalancer.Ingress,
				func(i corev1.LoadBalancerIngress) bool { return slices.Contains(s.Spec.ExternalIPs, i.IP) }))
			count("external IPs", len(s.Spec.ExternalIPs) > 0)
			count("external Local", s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal)
			count("internal Local", s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal)
			count("health check", s.Spec.HealthCheckNodePort != 0)
			count("no node port", s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.Ports[0].NodePort == 0)
			count("left to another proxy", len(s.Labels) > 0)
			count("unnamed port", s.Spec.Ports[0].Name == "")
			for _, p := range s.Spec.Ports {
				count("protocol "+string(p.Protocol), true)
			}
			for _, i := range s.Status.LoadBalancer.Ingress {
				count("load balancer by name", i.Hostname != "")
				count("load balancer as proxy", i.IPMode != nil && *i.IPMode == corev1.LoadBalancerIPModeProxy)
			}
		}
		for _, s := range endpointSlices {
			count("addresses "+string(s.AddressType), true)
			count("empty slice", len(s.Endpoints) == 0)
			_, hidden := s.Labels[corev1.IsHeadlessService]
			count("hidden slice", hidden)
			for _, p := range s.Ports {
				count("port without number", p.Port == nil)
			}
			for _, e := range s.Endpoints {
				count("endpoint here", e.NodeName != nil && *e.NodeName == NodeName)
				count("endpoint of no node", e.NodeName == nil)
				count("zone hints", e.Hints != nil && len(e.Hints.ForZones) > 0)
				count("node hints", e.Hints != nil && len(e.Hints.ForNodes) > 0)
				count("state "+stateText(e.Conditions), true)
			}
		}
	}
	states := 0
	for what, n := range seen {
		if n < 3 {
			t.Errorf("%s: only %d times in 40 worlds", what, n)
		}
		if strings.HasPrefix(what, "state ") {
			states++
		}
	}
	if states != 27 {
		t.Errorf("%d of 27 states of endpoints", states)
	}
	if len(seen) < 60 {
		t.Errorf("only %d kinds of things", len(seen))
	}
}

func stateText(c discoveryv1.EndpointConditions) string {
	text := ""
	for _, b := range []*bool{c.Ready, c.Serving, c.Terminating} {
		switch {
		case b == nil:
			text += "-"
		case *b:
			text += "y"
		default:
			text += "n"
		}
	}
	return text
}
