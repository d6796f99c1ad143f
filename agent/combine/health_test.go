package combine

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestLocalReady(t *testing.T) {
	const cluster, local = v1alpha1.TrafficPolicyCluster, v1alpha1.TrafficPolicyLocal
	type groups = []v1alpha1.EndpointGroup
	tests := []struct {
		name           string // with the row of the reference's scenarios
		external       v1alpha1.TrafficPolicy
		internal       v1alpha1.TrafficPolicy
		groups         groups
		localEndpoints string
		edit           func(*v1alpha1.ServiceProxyRulesSpec)
		want           int
	}{
		{"three ready, one not (144)", local, cluster, groups{groupOf(ready, "", ".1", ".2", ".3")}, ".1 .2 .3 .4", nil, 3},
		{"terminating ones serve, but do not count (145)", local, cluster, groups{groupOf(terminating, "", ".1", ".2")}, ".1 .2", nil, 0},
		{"some terminating", local, cluster, groups{groupOf(ready, "", ".1"), groupOf(terminating, "", ".2")}, ".1 .2", nil, 1},
		{"one pod behind two ports (147)", local, cluster, groups{groupOf(ready, "", ".1", "10.0.1.1:81")}, ".1 10.0.1.1:81", nil, 1},
		{"ready elsewhere only", local, cluster, groups{groupOf(ready, "", ".1")}, ".2", nil, 0},
		{"hints for other zones and nodes do not matter", local, cluster, groups{groupOf(ready, "zone-b node-9", ".1")}, ".1", nil, 1},
		{"internal traffic policy Local", local, local, groups{groupOf(ready, "", ".1")}, ".1", nil, 1},
		{"external traffic policy Cluster, as a policy may make it", cluster, cluster, groups{groupOf(ready, "", ".1")}, ".1", nil, 1},
		{"an endpoint of the other family", local, cluster, groups{groupOf(ready, "", "[fd00::1]:80", ".1")}, ".1 [fd00::1]:80", nil, 1},
		{"no port to check", local, cluster, groups{groupOf(ready, "", ".1")}, ".1", func(s *v1alpha1.ServiceProxyRulesSpec) { s.HealthCheckNodePort = 0 }, 0},
		{"a port that is none", local, cluster, groups{groupOf(ready, "", ".1")}, ".1", func(s *v1alpha1.ServiceProxyRulesSpec) { s.HealthCheckNodePort = 70000 }, 0},
		{"no address from outside", local, cluster, groups{groupOf(ready, "", ".1")}, ".1", func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].NodePort = 0 }, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rules := rulesOf(tt.external, tt.internal, 30080, tt.groups...)
			rules.HealthCheckNodePort = 31234
			if tt.edit != nil {
				tt.edit(rules)
			}
			svc, _ := Service(Input{Rules: rules, LocalEndpoints: localEndpointsOf(tt.localEndpoints), Node: Node{Name: "node-1", Zone: "zone-a"}, Family: dataplane.IPv4})
			if svc.LocalReady != tt.want {
				t.Errorf("%d, want %d", svc.LocalReady, tt.want)
			}
		})
	}
}

func TestLocalReadyOverPorts(t *testing.T) {
	rules := rulesOf(v1alpha1.TrafficPolicyLocal, v1alpha1.TrafficPolicyCluster, 30080, groupOf(ready, "", ".1", ".2"))
	rules.HealthCheckNodePort = 31234
	rules.Ports = append(rules.Ports, v1alpha1.ServicePort{Name: "q", Protocol: v1alpha1.ProtocolUDP, Port: 53,
		Endpoints: []v1alpha1.EndpointGroup{groupOf(ready, "", "10.0.1.2:53", "10.0.1.3:53")}})
	localEndpoints := append(localEndpointsOf(".1 .2"), v1alpha1.PortLocalEndpoints{Name: "q", Protocol: v1alpha1.ProtocolUDP, Endpoints: []string{"10.0.1.2:53", "10.0.1.3:53"}})
	in := Input{Rules: rules, LocalEndpoints: localEndpoints, Family: dataplane.IPv4}
	svc, _ := Service(in)
	if svc.LocalReady != 3 {
		t.Errorf("%d addresses, want 3", svc.LocalReady)
	}
	// What the rules do not contain must reach the health check all the same.
	other := *svc
	other.LocalReady = 2
	if Equal(svc, &other) {
		t.Error("another count makes no difference")
	}
	in.Lost = func(c Claim) bool { return c.Port == 31234 }
	if svc, _ = Service(in); svc.HealthCheckNodePort != 0 || svc.Ports[0].NodePort == 0 {
		t.Errorf("a health-check node port that is lost is %d", svc.HealthCheckNodePort)
	}
}
