package v1alpha1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestAgentLeaseNames(t *testing.T) {
	long := strings.Repeat("a", 63) + "." + strings.Repeat("b", 63) + "." + strings.Repeat("c", 63) + "." + strings.Repeat("d", 61)
	nodes := []string{
		"work-7", "edge.example.com", "nodeproxy-controller", "agent.work-7", "agent-of-long-name.x",
		long[:247], long[:248], long, long[:252] + "e",
	}
	seen := map[string]string{}
	for _, node := range nodes {
		name := AgentLeaseName(node)
		if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
			t.Errorf("the Lease of %s is called %s: %v", node, name, errs)
		}
		if !IsAgentLeaseName(name) {
			t.Errorf("%s is not recognized", name)
		}
		if other, taken := seen[name]; taken {
			t.Errorf("%s and %s share the Lease %s", node, other, name)
		}
		seen[name] = node
	}
	if got := AgentLeaseName("work-7"); got != "agent.work-7" {
		t.Errorf("the Lease of work-7 is called %s", got)
	}
	if IsAgentLeaseName("nodeproxy-controller") {
		t.Error("the controller's Lease is taken for an agent's")
	}
}
