package combine

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestServing: UDP flows are preserved to whatever receives traffic somewhere, though
// this node would not choose it now. Other protocols need no such list.
func TestServing(t *testing.T) {
	const cluster, local = v1alpha1.TrafficPolicyCluster, v1alpha1.TrafficPolicyLocal
	type groups = []v1alpha1.EndpointGroup
	for _, tt := range []struct {
		name     string
		internal v1alpha1.TrafficPolicy
		protocol v1alpha1.Protocol
		groups   groups
		want     string
		shared   bool // with the cluster list
	}{
		{"ready ones", cluster, "UDP", groups{groupOf(ready, "", ".1", ".2")}, ".1 .2", true},
		{"terminating ones besides", cluster, "UDP", groups{groupOf(ready, "", ".2"), groupOf(terminating, "", ".1")}, ".1 .2", false},
		{"terminating ones alone", cluster, "UDP", groups{groupOf(terminating, "", ".1")}, ".1", true},
		{"those of other zones", cluster, "UDP", groups{groupOf(ready, "a", ".1"), groupOf(ready, "b", ".2")}, ".1 .2", false},
		{"those of other nodes", local, "UDP", groups{groupOf(ready, "", ".1", ".2")}, ".1 .2", false},
		{"none", cluster, "UDP", nil, "", false},
		{"TCP", cluster, "TCP", groups{groupOf(ready, "", ".1")}, "", false},
		{"SCTP", cluster, "SCTP", groups{groupOf(ready, "", ".1")}, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rules := rulesOf(cluster, tt.internal, 0, tt.groups...)
			rules.Ports[0].Protocol = tt.protocol
			in := Input{Name: dataplane.ServiceName{Namespace: "ns", Name: "svc"}, Rules: rules, Node: Node{Zone: "a"}, Family: dataplane.IPv4}
			svc, problems := Service(in)
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			p := svc.Ports[0]
			if got := short(p.Serving); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			shared := len(p.Serving) > 0 && len(p.Cluster) > 0 && &p.Serving[0] == &p.Cluster[0]
			if shared != tt.shared {
				t.Errorf("memory shared with the cluster list: %v, want %v", shared, tt.shared)
			}
			other := *svc
			other.Ports = []dataplane.Port{p}
			other.Ports[0].Serving = append(other.Ports[0].Serving[:0:0], p.Serving...)
			if !Equal(svc, &other) {
				t.Error("not equal to its copy")
			}
			other.Ports[0].Serving = append(other.Ports[0].Serving, svc.Ports[0].Serving...)
			if same := len(p.Serving) == 0; Equal(svc, &other) != same {
				t.Errorf("equal to a Service that serves otherwise: %v, want %v", !same, same)
			}
		})
	}
}
