package tenants

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// mostEndpoints is a Service with as many endpoints as one may have, in slices of a thousand. Each round
// moves those of one slice.
func (r *rig) mostEndpoints(round int) []client.Object {
	const name, each, count = "endpoint-limit", 1000, v1alpha1.MaxServiceEndpoints / 1000
	part := func(n, from, size int) *discoveryv1.EndpointSlice {
		s := slice(name, 1, endpoints(from, size))
		s.Name = fmt.Sprintf("%s-%d", name, n)
		return s
	}
	last := part(count-1, (count-1)*each+round, each)
	if round > 1 {
		return []client.Object{last}
	}
	slices := []*discoveryv1.EndpointSlice{last, r.lastPort(name, 2), part(0, 0, each-1)} // one is the thief
	for n := 1; n < count-1; n++ {
		slices = append(slices, part(n, n*each, each))
	}
	return service(name, 2, nil, slices...)
}

// widePorts is how many ports a slice can have, and tallEndpoints how many endpoints slices of one port may
// have beside it.
const widePorts, tallEndpoints = 20_000, 4_999

// wideAndTall is a slice with many ports beside slices with many endpoints on the first node, all of one
// Service, which itself need not exist.
func (r *rig) wideAndTall(round int) []client.Object {
	const name, each = "wide", 1000
	out := []client.Object{slice(name, widePorts, endpoints(round, 1))}
	for first := 0; first < tallEndpoints; first += each {
		s := slice(name, 1, from(netip.MustParseAddr("10.251.0.1"), first, min(each, tallEndpoints-first)))
		s.Name = fmt.Sprintf("tall-%d", first)
		for i := range s.Endpoints {
			s.Endpoints[i].NodeName = new(r.cluster.Node(0).Name())
		}
		out = append(out, s)
	}
	return out
}

// hasLocal returns nil once the rules of the first node have local endpoints of a Service of the attacker.
func (r *rig) hasLocal(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		rules := &v1alpha1.NodeProxyRules{}
		if err := r.cluster.Client().Get(ctx, client.ObjectKey{Name: r.cluster.Node(0).Name()}, rules); err != nil {
			return err
		}
		if !carries(rules, attacker, name) {
			return fmt.Errorf("the rules of %s have no local endpoints of %s/%s", rules.Name, attacker, name)
		}
		return nil
	}
}

// rejectedAnew is a Service over a limit. Its owner gets another reason in each of its rounds, because
// the limit is another one: one of the two that the smallest objects exceed, which cost the API server
// least.
func rejectedAnew(round int) []client.Object {
	const names, limits = 5, 2 // each Service exceeds both: the numbers have no common divisor
	ports, external := 1, v1alpha1.MaxServiceAddresses+1+round
	if round%limits == 1 {
		ports, external = 101, v1alpha1.MaxServicePortAddresses/100
	}
	return service(fmt.Sprintf("noisy-%d", round%names), ports, func(s *corev1.Service) {
		s.Spec.ExternalIPs = addresses(round, external)
	})
}

// occupied are the ports of the first node's agent.
func (r *rig) occupied() []string {
	return []string{"127.0.0.1:10249", r.cluster.Node(0).AddressPort(healthPort), "127.0.0.1:19256"}
}

// occupy has a process that is not root, as a pod with hostNetwork or hostPorts, take the agent's ports
// before the agent starts.
func (r *rig) occupy(ctx context.Context) error {
	if err := r.agents[0].Stop(); err != nil {
		return err
	}
	var err error
	if r.occupant, err = r.unprivileged(ctx, r.occupied()...); err != nil {
		return err
	}
	if err := r.startAgent(0); err != nil {
		return err
	}
	return install.Until(ctx, patience, func(ctx context.Context) error {
		rules := &v1alpha1.NodeProxyRules{}
		if err := r.cluster.Client().Get(ctx, client.ObjectKey{Name: r.cluster.Node(0).Name()}, rules); err != nil {
			return err
		}
		// Whose port it is, so that the administrator finds the pod.
		if c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed); c == nil || !strings.Contains(c.Message, "uid "+podUser) {
			return fmt.Errorf("the status does not name who has the ports: %+v", c)
		}
		return nil
	})
}

// vacate ends that process and returns once the agent has its ports.
func (r *rig) vacate(ctx context.Context) error {
	if err := r.occupant.Stop(); err != nil {
		return err
	}
	r.occupant = nil
	return install.Until(ctx, patience, func(ctx context.Context) error {
		for _, url := range []string{"http://127.0.0.1:19256/livez", "http://" + r.cluster.Node(0).AddressPort(healthPort) + "/healthz"} {
			if _, err := r.cluster.Node(0).Get(ctx, url); err != nil {
				return err
			}
		}
		return nil
	})
}
