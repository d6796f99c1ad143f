package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// weighingKernel measures the memory in use amid each call.
type weighingKernel struct {
	*fakeKernel
	most uint64
}

func (k *weighingKernel) apply(context.Context, string) error {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	k.most = max(k.most, m.HeapAlloc)
	return nil
}

// TestMemoryOfALargeService: its texts are not all in memory at a time.
func TestMemoryOfALargeService(t *testing.T) {
	const ports = 50
	service := func(from int) *dataplane.Service {
		var list []netip.AddrPort
		for i := range v1alpha1.MaxServicePortEndpoints / ports {
			list = append(list, hugeEndpoint(from+i))
		}
		var all []dataplane.Port
		for n := range ports {
			all = append(all, dataplane.Port{Name: fmt.Sprintf("p%d", n), Protocol: v1alpha1.ProtocolTCP, Port: uint16(n + 1), Available: true, Cluster: list})
		}
		return &dataplane.Service{Name: dataplane.ServiceName{Namespace: "ns", Name: "huge"}, ClusterIP: netip.MustParseAddr(hugeIP), Ports: all}
	}
	plane := New(dataplane.IPv4, Options{SysctlDirectory: t.TempDir()})
	kernel := &weighingKernel{fakeKernel: newFakeKernel()}
	plane.kernel = kernel
	rules := newRuleset()
	*rules.Node.Settings.NodePorts.Localhost = "Disabled"
	if _, err := plane.Apply(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	rules.Full, rules.Pause = false, func() bool { return false }
	before := kernel.most
	for from := range 2 {
		s := service(from)
		rules.Services[s.Name] = s
		rules.Dirty = map[dataplane.ServiceName]struct{}{s.Name: {}}
		result, err := plane.Apply(t.Context(), rules)
		if err != nil || result.Kind != v1alpha1.SyncPartial {
			t.Fatal(result, err)
		}
		const most = 6 << 20
		used := kernel.most - before
		if used > most {
			t.Errorf("a Service with %d endpoints of ports takes %d MB while it is written, more than %d", v1alpha1.MaxServicePortEndpoints, used>>20, most>>20)
		}
	}
}
