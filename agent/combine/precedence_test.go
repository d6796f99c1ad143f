package combine

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// claiming makes the rules of a Service from words: "old" or "young", "cluster", "external",
// "balanced" and "node" with an address (node: one of a Node), "port" and "nodeport" with a
// number.
func claiming(name, text string) v1alpha1.ServiceProxyRules {
	spec := v1alpha1.ServiceProxyRulesSpec{
		FormatVersion: 1, ClusterIPs: []string{"172.30.0.1"},
		Ports: []v1alpha1.ServicePort{{Name: "p", Protocol: v1alpha1.ProtocolTCP, Port: 80}},
	}
	words := strings.Fields(text)
	year := 2025
	for i := 0; i < len(words); i++ {
		switch words[i] {
		case "old":
			year = 2020
			continue
		case "young":
			continue
		}
		value := words[i+1]
		switch words[i] {
		case "cluster":
			spec.ClusterIPs = []string{value}
		case "external":
			spec.ExternalIPs = append(spec.ExternalIPs, value)
		case "balanced":
			spec.LoadBalancerIPs = append(spec.LoadBalancerIPs, value)
		case "node":
			spec.NodeAddresses = append(spec.NodeAddresses, value)
		case "port", "nodeport":
			var number int32
			if _, err := fmt.Sscan(value, &number); err != nil {
				panic(err)
			}
			if words[i] == "port" {
				spec.Ports[0].Port = number
			} else {
				spec.Ports[0].NodePort = number
			}
		}
		i++
	}
	spec.ServiceCreated = metav1.NewTime(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
	return v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "shop." + name}, Spec: spec}
}

// TestPrecedence: a cluster IP, then the node port's owner, then age.
func TestPrecedence(t *testing.T) {
	const node, other = "192.168.0.2", "198.51.100.20"
	for name, c := range map[string]struct {
		a, b string
		// at and port are what both ask for, and has is who gets it: "a", "b" or "both", each
		// in its own way.
		at   string
		port uint16
		has  string
	}{
		"a cluster IP and an older external IP": {
			a: "old external 172.30.0.9", b: "young cluster 172.30.0.9", at: "172.30.0.9", port: 80, has: "b",
		},
		"a cluster IP and an older load-balancer IP that are a Node's address": {
			a: "old balanced 172.30.0.9 node 172.30.0.9", b: "young cluster 172.30.0.9", at: "172.30.0.9", port: 80, has: "b",
		},
		"two external IPs": {a: "old external " + other, b: "young external " + other, at: other, port: 80, has: "a"},
		"an external and an older load-balancer IP": {
			a: "young external " + other, b: "old balanced " + other, at: other, port: 80, has: "b",
		},
		"a node port and an older external IP that is a Node's address": {
			a: "old external " + node + " node " + node + " port 30080", b: "young nodeport 30080", at: node, port: 30080, has: "b",
		},
		"a node port and an older load-balancer IP that is a Node's address": {
			a: "old balanced " + node + " node " + node + " port 30080", b: "young nodeport 30080", at: node, port: 30080, has: "b",
		},
		"a node port and an older external IP that is no Node's address": {
			a: "old external " + other + " port 30080", b: "young nodeport 30080", at: other, port: 30080, has: "both",
		},
		"a node port and an external IP of another port": {
			a: "old external " + node + " node " + node + " port 30081", b: "young nodeport 30080", at: node, port: 30081, has: "both",
		},
		"two external IPs that are a Node's address, and no node port": {
			a: "old external " + node + " node " + node + " port 30080", b: "young external " + node + " node " + node + " port 30080", at: node, port: 30080, has: "a",
		},
		"its own node port at a Node's address": {
			a: "old external " + node + " node " + node + " port 30080 nodeport 30080", b: "young", at: node, port: 30080, has: "both",
		},
		"two node ports": {a: "young nodeport 30080", b: "old nodeport 30080", at: "0.0.0.0", port: 30080, has: "b"},
		"a cluster IP that is a Node's address and another's node port": {
			a: "old nodeport 30080", b: "young cluster " + node + " external " + node + " node " + node + " port 30080", at: node, port: 30080, has: "both",
		},
		"of one age, by the name": {a: "old external " + other, b: "old external " + other, at: other, port: 80, has: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []v1alpha1.ServiceProxyRules{claiming("a", c.a), claiming("b", c.b)}
			for range 2 {
				slices.Reverse(objects) // the order decides nothing
				set, err := Whole(&v1alpha1.NodeProxyRules{Spec: v1alpha1.NodeProxyRulesSpec{FormatVersion: 1}}, objects, dataplane.IPv4)
				if err != nil {
					t.Fatal(err)
				}
				has := map[string]bool{}
				for name, svc := range set.Services {
					has[name.Name] = hasAll(svc, objects, c.at, c.port)
				}
				if got := map[bool]string{true: "both"}[has["a"] && has["b"]]; got != c.has && (got != "" || !has[c.has]) {
					t.Errorf("%s: %v have what they ask for, want %s", c.at, has, c.has)
				}
			}
		})
	}
}

// hasAll reports whether a Service has what it asks for: its port at an address, if it names
// that, and its node port.
func hasAll(svc *dataplane.Service, objects []v1alpha1.ServiceProxyRules, at string, port uint16) bool {
	i := slices.IndexFunc(objects, func(o v1alpha1.ServiceProxyRules) bool { return o.Name == "shop."+svc.Name.Name })
	p := svc.Ports[0]
	return p.NodePort == uint16(objects[i].Spec.Ports[0].NodePort) &&
		(p.Port != port || !slices.Contains(svc.Addresses(), netip.MustParseAddr(at)) || p.Serves(netip.MustParseAddr(at)))
}

// TestConcernedByNodePorts: a node port that comes or goes concerns those that yield to it, and
// these do not concern each other.
func TestConcernedByNodePorts(t *testing.T) {
	r := Registry[*whole]{}
	add := func(name, text string) *whole {
		object := claiming(name, text)
		w, _ := known(&object)
		return w
	}
	claims := func(w *whole) []Asked { return Claims(w.rules) }
	one := add("one", "cluster 172.30.0.2 external 192.168.0.2 node 192.168.0.2 port 30080")
	two := add("two", "cluster 172.30.0.3 external 192.168.0.3 node 192.168.0.3 port 30080")
	if got := append(r.Set(one, nil, claims(one)), r.Set(two, nil, claims(two))...); len(got) != 0 {
		t.Errorf("%d are concerned by each other", len(got))
	}
	if claim := nodePortClaim(30080, v1alpha1.ProtocolTCP, dataplane.IPv4); r.Lost(one, claim) {
		t.Error("one yields although no Service has the node port")
	} else if _, found := r.Holder(claim); found {
		t.Error("a Service has a node port that no Service claims")
	}
	owner := add("owner", "cluster 172.30.0.4 nodeport 30080")
	if got := r.Set(owner, nil, claims(owner)); len(got) != 2 {
		t.Errorf("the node port comes, and %d are concerned", len(got))
	}
	if got := r.Set(owner, claims(owner), nil); len(got) != 2 {
		t.Errorf("the node port goes, and %d are concerned", len(got))
	}
	r.Set(one, claims(one), nil)
	r.Set(two, claims(two), nil)
	if len(r) != 0 {
		t.Errorf("left are %v", r)
	}
}

// TestRegistryInAnyOrder: whatever comes and goes in between, the outcome is that of what is
// there.
func TestRegistryInAnyOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test that repeats
	texts := []string{
		"old external 192.168.0.2 node 192.168.0.2 port 30080", "young external 192.168.0.2 port 30080", "young nodeport 30080",
		"old nodeport 30080 port 30080 external 192.168.0.2 node 192.168.0.2", "young cluster 192.168.0.2 port 30080", "old balanced 192.168.0.2 node 192.168.0.2 port 30080",
	}
	r := Registry[*whole]{}
	present := map[*whole]bool{}
	var all []*whole
	for i, text := range texts {
		object := claiming(fmt.Sprint(i), text)
		w, _ := known(&object)
		all = append(all, w)
	}
	asked := []Claim{
		{Address: netip.MustParseAddr("192.168.0.2"), Port: 30080, Protocol: v1alpha1.ProtocolTCP},
		nodePortClaim(30080, v1alpha1.ProtocolTCP, dataplane.IPv4),
	}
	for range 500 {
		w := all[rnd.IntN(len(all))]
		before := lostBy(r, present, asked)
		var concerned []*whole
		if present[w] {
			concerned = r.Set(w, Claims(w.rules), nil)
			delete(present, w)
		} else {
			concerned = r.Set(w, nil, Claims(w.rules))
			present[w] = true
		}
		after := lostBy(r, present, asked)
		for other := range present {
			if other != w && !slices.Equal(before[other], after[other]) && !slices.Contains(concerned, other) {
				t.Fatalf("%s is not concerned by %s", other.name, w.name)
			}
		}
		fresh := Registry[*whole]{}
		for _, w := range all {
			if present[w] {
				fresh.Set(w, nil, Claims(w.rules))
			}
		}
		for _, claim := range asked {
			for w := range present {
				if got, want := r.Lost(w, claim), fresh.Lost(w, claim); got != want {
					t.Fatalf("%s has lost %v: %t, want %t", w.name, claim, got, want)
				}
			}
			got, _ := r.Holder(claim)
			if want, _ := fresh.Holder(claim); got != want {
				t.Fatalf("%v is held by %v, want %v", claim, got, want)
			}
		}
	}
}

// lostBy reports which claims each makes in vain.
func lostBy(r Registry[*whole], present map[*whole]bool, asked []Claim) map[*whole][]bool {
	out := map[*whole][]bool{}
	for w := range present {
		own := Claims(w.rules)
		for _, claim := range asked {
			claims := slices.ContainsFunc(own, func(a Asked) bool { return a.Claim == claim })
			out[w] = append(out[w], claims && r.Lost(w, claim))
		}
	}
	return out
}
