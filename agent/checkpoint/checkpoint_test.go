package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var epoch = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

// sample is a set of some Services with endpoints, of which every second lives
// on the node.
func sample(services, endpoints int) *Set {
	s := &Set{
		Header: Header{Node: "node-1", Written: epoch, Identity: Identity{BootID: "boot-1", Netns: 7}, ConflictingProxy: true},
		Rules: &v1alpha1.NodeProxyRules{
			ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "own", ResourceVersion: "12", Generation: 3},
			Spec: v1alpha1.NodeProxyRulesSpec{FormatVersion: 1, SettingsRevision: "rev-1", Settings: *v1alpha1.CompleteSettings(nil),
				Node: v1alpha1.NodeFacts{Addresses: []string{"192.0.2.21"}, PodCIDRs: []string{"10.244.1.0/24"}}},
		},
	}
	for i := range services {
		name := fmt.Sprintf("web-%d", i)
		group := v1alpha1.EndpointGroup{State: v1alpha1.EndpointReady, Zones: []string{"zone-a"}}
		var localEndpoints []string
		for j := range endpoints {
			n := i*endpoints + j
			e := fmt.Sprintf("10.%d.%d.%d:8080", 128+n>>16&127, n>>8&255, n&255)
			group.Addresses = append(group.Addresses, e)
			if j%2 == 0 {
				localEndpoints = append(localEndpoints, e)
			}
		}
		s.Services = append(s.Services, &v1alpha1.ServiceProxyRules{
			ObjectMeta: metav1.ObjectMeta{Name: "shop." + name, UID: types.UID(fmt.Sprintf("0b5ed7a2-0000-4000-8000-%012d", i)), ResourceVersion: fmt.Sprint(100 + i)},
			Spec: v1alpha1.ServiceProxyRulesSpec{FormatVersion: 1, ServiceCreated: metav1.NewTime(epoch.Add(-time.Hour)),
				ClusterIPs:  []string{fmt.Sprintf("10.96.%d.%d", i>>8, i&255)},
				PortSummary: "80/TCP", EndpointCount: int32(endpoints),
				Ports: []v1alpha1.ServicePort{{Name: "http", Protocol: v1alpha1.ProtocolTCP, Port: 80, Endpoints: []v1alpha1.EndpointGroup{group}}}},
		})
		s.Rules.Spec.LocalEndpoints = append(s.Rules.Spec.LocalEndpoints, v1alpha1.ServiceLocalEndpoints{Namespace: "shop", Name: name,
			Ports: []v1alpha1.PortLocalEndpoints{{Name: "http", Protocol: v1alpha1.ProtocolTCP, Endpoints: localEndpoints}}})
	}
	s.name()
	return s
}

func TestWithoutLocalEndpoints(t *testing.T) {
	group := func(endpoints ...string) v1alpha1.EndpointGroup {
		return v1alpha1.EndpointGroup{State: v1alpha1.EndpointReady, Addresses: endpoints}
	}
	port := func(name string, groups ...v1alpha1.EndpointGroup) v1alpha1.ServicePort {
		return v1alpha1.ServicePort{Name: name, Protocol: v1alpha1.ProtocolTCP, Port: 80, Endpoints: groups}
	}
	service := func(name string, ports ...v1alpha1.ServicePort) *v1alpha1.ServiceProxyRules {
		return &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ServiceProxyRulesSpec{Ports: ports}}
	}
	format2 := func(name string, targets map[string]int32, addresses ...string) *v1alpha1.ServiceProxyRules {
		object := service(name, port("http"), port("other"))
		object.Spec.Endpoints = []v1alpha1.EndpointGroup{{TargetPorts: targets, Addresses: addresses}}
		return object
	}
	localEndpoints := func(name, port string, protocol v1alpha1.Protocol, endpoints ...string) v1alpha1.ServiceLocalEndpoints {
		return v1alpha1.ServiceLocalEndpoints{Namespace: "shop", Name: name, Ports: []v1alpha1.PortLocalEndpoints{{Name: port, Protocol: protocol, Endpoints: endpoints}}}
	}
	s := &Set{Header: Header{Node: "node-1", Written: epoch}, Rules: &v1alpha1.NodeProxyRules{}, Services: []*v1alpha1.ServiceProxyRules{
		service("shop.a", port("http", group("10.1.0.1:80", "10.2.0.1:80", "[fd00::1]:80"), group("10.1.0.2:80")), port("other", group("10.1.0.1:80"))),
		service("shop.b", port("http", group("10.1.0.1:80"))),
		service("shop.c", port("http", group("10.1.0.3:80"))),
		format2("shop.d", map[string]int32{"http": 80, "other": 81}, "10.1.0.4", "10.1.0.5", "fd00::4"),
	}}
	s.Rules.Spec.LocalEndpoints = []v1alpha1.ServiceLocalEndpoints{
		localEndpoints("a", "http", v1alpha1.ProtocolTCP, "10.1.0.1:80", "[fd00:0::1]:80", "nonsense"),
		localEndpoints("a", "http", v1alpha1.ProtocolTCP, "10.1.0.2:80"), // named twice by hand
		localEndpoints("a", "other", v1alpha1.ProtocolUDP, "10.1.0.1:80"),
		localEndpoints("c", "http", v1alpha1.ProtocolTCP, "10.1.0.3:80"),
		localEndpoints("d", "other", v1alpha1.ProtocolTCP, "10.1.0.4:81", "10.1.0.5:80", "[fd00::4]:81"),
	}
	before := s.Rules.DeepCopy()
	got := s.WithoutLocalEndpoints()
	want := []*v1alpha1.ServiceProxyRules{
		service("shop.a", port("http", group("10.2.0.1:80")), port("other", group("10.1.0.1:80"))),
		service("shop.b", port("http", group("10.1.0.1:80"))), // another Service's local endpoints are not its own
		service("shop.c", v1alpha1.ServicePort{Name: "http", Protocol: v1alpha1.ProtocolTCP, Port: 80, Endpoints: []v1alpha1.EndpointGroup{}}),
		format2("shop.d", map[string]int32{"http": 80, "other": 81}, "10.1.0.5"),
	}
	if diff := cmp.Diff(want, got.Services); diff != "" {
		t.Errorf("Services (-want +got):\n%s", diff)
	}
	if len(got.Rules.Spec.LocalEndpoints) > 0 || got.Header != s.Header {
		t.Errorf("localEndpoints %v, header %v", got.Rules.Spec.LocalEndpoints, got.Header)
	}
	if diff := cmp.Diff(before, s.Rules); diff != "" || len(s.Services[0].Spec.Ports[0].Endpoints) != 2 || len(s.Services[0].Spec.Ports[0].Endpoints[0].Addresses) != 3 {
		t.Errorf("the set itself was changed: %s %v", diff, s.Services[0])
	}
}

func TestIdentity(t *testing.T) {
	here, err := Here("/proc")
	if err != nil || here.BootID == "" || here.Netns == 0 {
		t.Fatalf("here: %+v, %v", here, err)
	}
	again, err := Here("/proc")
	if err != nil || !here.Same(again) {
		t.Errorf("twice the same place: %+v and %+v, %v", here, again, err)
	}
	for name, other := range map[string]Identity{
		"another boot": {"other", here.Netns}, "another namespace": {here.BootID, here.Netns + 1}, "unknown": {},
	} {
		if here.Same(other) {
			t.Errorf("%s is the same", name)
		}
	}
	if (Identity{}).Same(Identity{}) {
		t.Error("two unknown boots are the same")
	}
	proc := t.TempDir()
	if _, err := Here(proc); err == nil {
		t.Error("no error without a boot id")
	}
	directory := filepath.Join(proc, "sys/kernel/random")
	if err := os.MkdirAll(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "boot_id"), []byte("abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Here(proc); err != nil || got.BootID != "abc" || got.Netns != here.Netns {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestAge(t *testing.T) {
	h := &Header{Written: epoch}
	for after, want := range map[time.Duration]time.Duration{time.Hour: time.Hour, -time.Hour: 0} {
		if got := h.Age(epoch.Add(after)); got != want {
			t.Errorf("after %s: age %s, want %s", after, got, want)
		}
	}
}
