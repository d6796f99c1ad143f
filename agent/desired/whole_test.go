package desired

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestWholeIsWhatTheStoreWants: combining a cluster's objects at once gives
// what an agent wants that has seen them come, change and go one by one.
func TestWholeIsWhatTheStoreWants(t *testing.T) {
	families := []dataplane.Family{dataplane.IPv4, dataplane.IPv6}
	lost, odd := 0, 0
	for seed := range uint64(60) {
		r := newRig(t)
		r.Store = New(Options{Clock: r.clock, NodeName: "node-1", Families: families, Report: func(dataplane.ServiceName, string) {}})
		w := &drawn{rig: r, rand: rand.New(rand.NewPCG(seed, 7)), objects: map[string]*v1alpha1.ServiceProxyRules{}}
		r.SetServices(nil)
		node := w.node()
		r.SetRules(node)
		for range 80 {
			w.step()
			if w.rand.IntN(10) == 0 {
				node = w.node()
				r.SetRules(node)
			}
			if w.rand.IntN(4) == 0 {
				r.prepare()
			}
		}
		r.prepare()
		var list []v1alpha1.ServiceProxyRules
		for _, o := range w.objects {
			list = append(list, *o)
		}
		for _, family := range families {
			set, err := combine.Whole(node, list, family)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := set.Services, r.families[family].services; !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, %s: %s", seed, family, firstDifference(got, want))
			}
			if want := r.own.nodes[family]; !reflect.DeepEqual(set.Node, want) || set.Mode != *want.Settings.Mode {
				t.Errorf("seed %d, %s: node %+v, want %+v", seed, family, set.Node, want)
			}
			odd += len(set.LeftOut)
			for _, svc := range set.Services {
				lost += len(svc.Ports[0].Lost)
			}
		}
	}
	if lost < 50 || odd < 20 {
		t.Errorf("the worlds are dull: %d claims lost, %d objects left out", lost, odd)
	}
}

func firstDifference(got, want map[dataplane.ServiceName]*dataplane.Service) string {
	for name := range want {
		if !reflect.DeepEqual(got[name], want[name]) {
			return fmt.Sprintf("%s is\n%+v, want\n%+v", name, got[name], want[name])
		}
	}
	return fmt.Sprintf("%d Services, want %d", len(got), len(want))
}

// drawn is a world that chance makes.
type drawn struct {
	*rig
	rand    *rand.Rand
	objects map[string]*v1alpha1.ServiceProxyRules
}

// step lets one object come, change or end.
func (w *drawn) step() {
	name := fmt.Sprintf("shop.s%d", w.rand.IntN(25))
	former := w.objects[name]
	if former != nil && w.rand.IntN(4) == 0 {
		last := former.DeepCopy()
		last.Generation++
		last.Spec.FormatVersion, last.Spec.Released = v1alpha1.FormatVersion, true
		if w.rand.IntN(2) == 0 { // the mark is seen before the deletion
			w.SetService(last)
		}
		w.DeleteService(last)
		delete(w.objects, name)
		return
	}
	o := &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: w.service()}
	switch w.rand.IntN(20) {
	case 0:
		o.Name = "misnamed"
	case 1:
		if former == nil { // later the last state that was understood stays
			o.Spec.FormatVersion = v1alpha1.FormatVersion + 1
		}
	case 2:
		o.Spec.Released = true
	}
	w.Version++
	o.Generation = int64(w.Version)
	w.objects[o.Name] = o
	w.SetService(o)
}

func (w *drawn) one(list ...string) string { return list[w.rand.IntN(len(list))] }

func (w *drawn) some(list ...string) []string {
	return slices.DeleteFunc(list, func(string) bool { return w.rand.IntN(2) == 0 })
}

// service draws what a Service is like; several may have the same addresses and
// ports.
func (w *drawn) service() v1alpha1.ServiceProxyRulesSpec {
	policy := func() v1alpha1.TrafficPolicy {
		return v1alpha1.TrafficPolicy(w.one("Cluster", "Local", "", "Elsewhere"))
	}
	spec := v1alpha1.ServiceProxyRulesSpec{
		FormatVersion:         v1alpha1.FormatVersion,
		ServiceCreated:        metav1.NewTime(agenttest.Epoch.Add(time.Duration(w.rand.IntN(4)) * time.Second)),
		ClusterIPs:            w.some(fmt.Sprintf("10.96.0.%d", w.rand.IntN(20)), fmt.Sprintf("fd00::%x", 1+w.rand.IntN(20)), "nonsense"),
		ExternalIPs:           w.some("192.0.2.99", "2001:db8::99"),
		LoadBalancerIPs:       w.some("192.0.2.200", "192.0.2.201"),
		ExternalTrafficPolicy: policy(), InternalTrafficPolicy: policy(),
		LoadBalancerSourceRanges: w.some("203.0.113.0/24", "no range"),
		HealthCheckNodePort:      int32(w.rand.IntN(3)) * 15000,
	}
	if w.rand.IntN(3) == 0 {
		spec.SessionAffinity = &v1alpha1.SessionAffinity{ClientIPTimeoutSeconds: int32(w.rand.IntN(3)) * 60}
	}
	for i := range 1 + w.rand.IntN(2) {
		spec.Ports = append(spec.Ports, v1alpha1.ServicePort{
			Name: fmt.Sprint("p", i), Protocol: v1alpha1.Protocol(w.one("TCP", "UDP")), Port: int32(80 + w.rand.IntN(3)),
			NodePort: int32(w.rand.IntN(3)) * 15000,
			Endpoints: []v1alpha1.EndpointGroup{
				{State: v1alpha1.EndpointReady, Addresses: w.some("10.244.1.1:80", "10.244.1.2:80", "10.244.9.9:80", "[fd01::1]:80")},
				{State: v1alpha1.EndpointReady, Zones: w.some("a", "b"), Addresses: w.some("10.244.1.5:80")},
				{State: v1alpha1.EndpointTerminating, Addresses: w.some("10.244.1.3:80", "10.244.9.8:80")},
			},
		})
	}
	return spec
}

// node draws the node's zone, settings and local endpoints.
func (w *drawn) node() *v1alpha1.NodeProxyRules {
	return w.Node(func(s *v1alpha1.NodeProxyRulesSpec) {
		s.Node.Zone = w.one("", "a", "b", "c")
		*s.Settings.Mode = v1alpha1.ProxyMode(w.one("IPTables", "IPVS"))
		for i := range 25 {
			if w.rand.IntN(2) == 0 {
				continue
			}
			m := v1alpha1.ServiceLocalEndpoints{Namespace: "shop", Name: fmt.Sprint("s", i)}
			for _, protocol := range []v1alpha1.Protocol{"TCP", "UDP"} {
				m.Ports = append(m.Ports, v1alpha1.PortLocalEndpoints{Name: "p0", Protocol: protocol, Endpoints: w.some("10.244.1.1:80", "10.244.1.2:80", "10.244.1.3:80")})
			}
			s.LocalEndpoints = append(s.LocalEndpoints, m)
		}
	})
}
