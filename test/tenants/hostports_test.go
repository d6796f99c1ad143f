package tenants

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
)

// TestHostPorts has a tenant's pods ask for the ports at which nodes look for a proxy and its
// health. The scheduler gives none of them a node with an agent, because the agent's pod has
// the port at all addresses. TestTenants has a process that has the ports nevertheless.
func TestHostPorts(t *testing.T) {
	agents, err := agentdeploy.DaemonSet(nil, agentdeploy.Options{Image: "image"})
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []int32{10249, healthPort, 19256} {
		for _, ip := range []string{"", "0.0.0.0", "127.0.0.1", "::1"} {
			pod := corev1.ContainerPort{ContainerPort: 8080, HostPort: port, HostIP: ip, Protocol: corev1.ProtocolTCP}
			taken := false
			for _, c := range agents.Spec.Template.Spec.Containers {
				for _, p := range c.Ports {
					// As the scheduler's NodePorts compares.
					everywhere := p.HostIP == nil || *p.HostIP == "" || *p.HostIP == "0.0.0.0"
					if p.HostPort != nil && *p.HostPort == pod.HostPort && *p.Protocol == pod.Protocol && everywhere {
						taken = true
					}
				}
			}
			if !taken {
				t.Errorf("a pod with hostPort %d at %q gets a node with an agent", port, ip)
			}
		}
	}
	if !*agents.Spec.Template.Spec.HostNetwork {
		t.Error("the agent's pod listens in a network of its own")
	}
}
