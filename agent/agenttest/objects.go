package agenttest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Epoch is when tests with a clock of their own begin.
var Epoch = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

// Objects makes objects, each with a higher version than the one before.
type Objects struct{ Version int }

// Service makes the ServiceProxyRules of shop/name with cluster IP 10.96.0.ip.
func (r *Objects) Service(name string, ip int, edit ...func(*v1alpha1.ServiceProxyRulesSpec)) *v1alpha1.ServiceProxyRules {
	r.Version++
	o := &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{
		Name: "shop." + name, UID: types.UID(name), Generation: int64(r.Version), ResourceVersion: strconv.Itoa(r.Version),
	}}
	o.Spec = v1alpha1.ServiceProxyRulesSpec{
		FormatVersion: 1, ServiceCreated: metav1.NewTime(Epoch), ClusterIPs: []string{fmt.Sprintf("10.96.0.%d", ip)},
		Ports: []v1alpha1.ServicePort{{Name: "http", Protocol: "TCP", Port: 80, Endpoints: []v1alpha1.EndpointGroup{
			{State: v1alpha1.EndpointReady, Addresses: []string{fmt.Sprintf("10.244.1.%d:8080", ip), "10.244.9.9:8080"}},
		}}},
	}
	for _, e := range edit {
		e(&o.Spec)
	}
	return o
}

// Node makes the NodeProxyRules of node-1.
func (r *Objects) Node(edit ...func(*v1alpha1.NodeProxyRulesSpec)) *v1alpha1.NodeProxyRules {
	r.Version++
	o := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "node", Generation: int64(r.Version)}}
	o.Spec = v1alpha1.NodeProxyRulesSpec{FormatVersion: 1, SettingsRevision: "rev-1", Settings: *v1alpha1.CompleteSettings(nil),
		Node: v1alpha1.NodeFacts{Addresses: []string{"192.0.2.21", "nonsense", "2001:db8::21"}, PodCIDRs: []string{"10.244.1.0/24"}}}
	for _, e := range edit {
		e(&o.Spec)
	}
	return o
}

// Released marks a Service as one that has ended.
func Released(s *v1alpha1.ServiceProxyRulesSpec) { s.Released = true }

// IPv6 gives a Service addresses of IPv6 beside those of IPv4, or instead.
func IPv6(instead bool) func(*v1alpha1.ServiceProxyRulesSpec) {
	return func(s *v1alpha1.ServiceProxyRulesSpec) {
		group := v1alpha1.EndpointGroup{State: v1alpha1.EndpointReady, Addresses: []string{"[fd00:10:244:1::7]:8080", "[fd00:10:244:9::9]:8080"}}
		if instead {
			s.ClusterIPs, s.Ports[0].Endpoints = nil, nil
		}
		s.ClusterIPs = append(s.ClusterIPs, "fd00:10:96::7")
		s.Ports[0].Endpoints = append(s.Ports[0].Endpoints, group)
	}
}

// InventoryOf is the inventory of objects with these names.
func InventoryOf(names ...string) *v1alpha1.Inventory {
	var sum uint64
	for _, name := range names {
		sum += v1alpha1.NameHash(name)
	}
	return &v1alpha1.Inventory{Services: int32(len(names)), Hash: v1alpha1.FormatInventoryHash(sum)}
}

// Name is that of a Service of the namespace shop.
func Name(s string) dataplane.ServiceName { return dataplane.ServiceName{Namespace: "shop", Name: s} }

// Log records what is logged.
type Log struct {
	mu    sync.Mutex
	lines []string
}

// Add is a sink for funcr.
func (l *Log) Add(_, args string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, args)
}

// With returns the lines that contain text.
func (l *Log) With(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.lines), func(line string) bool { return !strings.Contains(line, text) })
}

// EndpointOfA puts the first endpoint of shop/a on the node.
func EndpointOfA(s *v1alpha1.NodeProxyRulesSpec) {
	s.LocalEndpoints = []v1alpha1.ServiceLocalEndpoints{{Namespace: "shop", Name: "a",
		Ports: []v1alpha1.PortLocalEndpoints{{Name: "http", Protocol: "TCP", Endpoints: []string{"10.244.1.1:8080"}}}}}
}

// Checkpoint makes one of a, b and c, of which a has an endpoint on the node.
func (r *Objects) Checkpoint(rebooted bool) *checkpoint.Restorable {
	set := &checkpoint.Set{
		Header: checkpoint.Header{Node: "node-1", Written: Epoch.Add(-7 * time.Minute)}, Rules: r.Node(EndpointOfA),
		Services: []*v1alpha1.ServiceProxyRules{r.Service("a", 1), r.Service("b", 2), r.Service("c", 3)},
	}
	for _, o := range set.Services {
		o.Generation = 0
	}
	if rebooted {
		set = set.WithoutLocalEndpoints()
	}
	return &checkpoint.Restorable{Set: set, Rebooted: rebooted, Why: "connection refused"}
}

// Unsupported is the error of a data plane whose node lacks something.
func Unsupported(what string) error { return fmt.Errorf("%w: %s", dataplane.ErrUnsupported, what) }

// Describe returns what an Apply of a ruleset has to do: "nothing", "partial" or
// "full", and the names of the Services that have changed.
func Describe(r *dataplane.Ruleset) string {
	if r == nil {
		return "nothing"
	}
	reported := "partial"
	switch {
	case r.Full && r.Prune:
		reported = "full, pruning"
	case r.Full:
		reported = "full"
	}
	var dirty []string
	for name := range r.Dirty {
		dirty = append(dirty, name.Name)
	}
	slices.Sort(dirty)
	return strings.TrimSpace(reported + " " + strings.Join(dirty, " "))
}
