package agent

import (
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func detect(mode v1alpha1.DetectLocalMode, cidrs ...string) func(*v1alpha1.NodeProxyRulesSpec) {
	return func(s *v1alpha1.NodeProxyRulesSpec) {
		s.Settings.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: mode, ClusterCIDRs: cidrs}
	}
}

func primary(s *v1alpha1.NodeProxyRulesSpec) {
	*s.Settings.NodePorts.AddressMode = v1alpha1.NodePortsPrimary
}

func having(addresses, podCIDRs string) func(*v1alpha1.NodeProxyRulesSpec) {
	return func(s *v1alpha1.NodeProxyRulesSpec) {
		s.Node.Addresses, s.Node.PodCIDRs = strings.Fields(addresses), strings.Fields(podCIDRs)
	}
}

func nodePort(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].NodePort = 30080 }

// TestMissingFacts: what a fact is missing for is reported, once it matters, and
// everything else is programmed.
func TestMissingFacts(t *testing.T) {
	const (
		noAddress4 = "the Node has no IPv4 address, so NodePorts answer on all IPv4 addresses"
		noAddress6 = "the Node has no IPv6 address, so NodePorts answer on all IPv6 addresses"
		noPods4    = "the Node has no IPv4 range in spec.podCIDRs, so pods of this node cannot be distinguished"
		noPods6    = "the Node has no IPv6 range in spec.podCIDRs, so pods of this node cannot be distinguished"
		noRange6   = "spec.settings.detectLocal.clusterCIDRs has no IPv6 range, so pods of this node cannot be distinguished"
	)
	type node = []func(*v1alpha1.NodeProxyRulesSpec)
	type service = []func(*v1alpha1.ServiceProxyRulesSpec)
	for name, c := range map[string]struct {
		node    node
		service service
		want    []string // beginnings of the warnings
	}{
		"nothing known, nothing asked":      {node{having("", "")}, service{nodePort, agenttest.IPv6(false)}, nil},
		"primary, no address":               {node{primary, having("", "")}, service{nodePort, agenttest.IPv6(false)}, []string{noAddress4, noAddress6}},
		"primary, no address of one family": {node{primary, having("192.0.2.21", "")}, service{nodePort, agenttest.IPv6(false)}, []string{noAddress6}},
		"primary, nothing of that family":   {node{primary, having("192.0.2.21", "")}, service{nodePort}, nil},
		"primary, no node port":             {node{primary, having("", "")}, service{agenttest.IPv6(false)}, nil},
		"node's ranges missing":             {node{detect(v1alpha1.DetectLocalNodeCIDR), having("192.0.2.21", "")}, service{agenttest.IPv6(false)}, []string{noPods4, noPods6}},
		"node's range of one family":        {node{detect(v1alpha1.DetectLocalNodeCIDR), having("", "10.244.1.0/24")}, service{agenttest.IPv6(false)}, []string{noPods6}},
		"node's range of what is needed":    {node{detect(v1alpha1.DetectLocalNodeCIDR), having("", "10.244.1.0/24")}, nil, nil},
		"cluster's range of one family":     {node{detect(v1alpha1.DetectLocalClusterCIDR, "10.244.0.0/16")}, service{agenttest.IPv6(false)}, []string{noRange6}},
		"cluster's ranges":                  {node{detect(v1alpha1.DetectLocalClusterCIDR, "10.244.0.0/16", "fd00:10:244::/56")}, service{agenttest.IPv6(false)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := newDualRig(t)
			r.SetRules(r.Node(c.node...))
			r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("web", 1, c.service...)})
			r.apply()
			r.expectWarnings(c.want...)
			if r.kernels[dataplane.IPv4].Service("shop", "web") == nil {
				t.Error("the Service is not programmed")
			}
		})
	}
}

func (r *dualRig) expectWarnings(want ...string) {
	r.t.Helper()
	warnings := r.Notices().Warnings
	ok := len(warnings) == len(want)
	for i := range want {
		ok = ok && strings.HasPrefix(warnings[i], want[i])
	}
	if !ok {
		r.t.Errorf("warnings:\n%s\nwant:\n%s", strings.Join(warnings, "\n"), strings.Join(want, "\n"))
	}
	programmed := inSync
	for _, w := range warnings {
		if programmed == inSync {
			programmed += ". Restrictions: " + w
		}
	}
	status := r.status()
	if got := status.Conditions[1]; !strings.HasPrefix(string(got.Status)+" "+got.Reason+": "+got.Message, programmed) {
		r.t.Errorf("Programmed is %s %q, want it to begin with %q", got.Status, got.Message, programmed)
	}
}

// TestFactsAreFollowed: what the Node comes to have, changes or loses is taken
// up without a restart.
func TestFactsAreFollowed(t *testing.T) {
	r := newDualRig(t)
	node := detect(v1alpha1.DetectLocalNodeCIDR)
	r.SetRules(r.Node(node, primary, having("", "")))
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("web", 1, nodePort)})
	r.apply()
	for _, step := range []struct{ addresses, podCIDRs string }{
		{"192.0.2.21 2001:db8::21", "10.244.1.0/24 fd00:10:244:1::/64"},
		{"192.0.2.22", "10.244.7.0/24"},
	} {
		r.SetRules(r.Node(node, primary, having(step.addresses, step.podCIDRs)))
		r.apply()
		r.expectWarnings()
		var addresses, podCIDRs []string
		for _, family := range r.fanout.Families() {
			n := r.kernels[family].Node()
			for _, a := range n.Addresses {
				addresses = append(addresses, a.String())
			}
			for _, p := range n.PodCIDRs {
				podCIDRs = append(podCIDRs, p.String())
			}
		}
		if got := strings.Join(addresses, " "); got != step.addresses {
			t.Errorf("addresses %q, want %q", got, step.addresses)
		}
		if got := strings.Join(podCIDRs, " "); got != step.podCIDRs {
			t.Errorf("podCIDRs %q, want %q", got, step.podCIDRs)
		}
	}
	r.SetService(r.Service("web", 1)) // no node port any more
	r.SetRules(r.Node(node, primary, having("", "10.244.7.0/24")))
	r.apply()
	r.expectWarnings()
	r.SetService(r.Service("web", 1, nodePort))
	r.apply()
	r.expectWarnings("the Node has no IPv4 address")
}
