package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/rollouts"
)

// The namespace that policies select, its Service, and where that answers. Clients
// outside come from two addresses.
const (
	team, teamLabel = "team", "teams.example.com/name"
	front           = "front"
	frontPort       = 30090
)

var (
	frontVIPs = []string{"203.0.113.40", "2001:db8::40"}
	allowed   = []string{"172.20.0.200", "fd00:172:20::200"}
	outsiders = []string{"172.20.0.201", "fd00:172:20::201"}
)

// way is a way to the Service of the team: an address for each IP family, from a
// place, by a client's addresses.
type way struct {
	name      string
	from      *cluster.Place
	clients   []string // nil: whatever there is
	addresses []string
}

// shapesServices closes the NodePorts of a namespace and opens them again, and wants
// source ranges of its load balancers whatever their owner has written.
func (p *pool) shapesServices() {
	p.makeTeam()
	inside, ports, open, closed := p.ways()
	p.answerBy(inside, ports, open, closed)

	ownPorts := p.servicePolicy("no-node-ports", v1alpha1.ServiceOverrides{NodePorts: new(v1alpha1.Disabled)})
	p.load.during("NodePorts of a namespace closed", 2*time.Second, func() {
		p.apply(ownPorts)
		p.silentBy(ports)
	})
	p.answerBy(inside, open, closed)
	p.rendered(0, nil, ownPorts.Name)

	ranges := p.servicePolicy("source-ranges", v1alpha1.ServiceOverrides{
		LoadBalancerSourceRanges: []string{allowed[0] + "/32", allowed[1] + "/128"},
	})
	p.load.during("source ranges for a namespace", 2*time.Second, func() {
		p.apply(ranges)
		p.silentBy(closed)
	})
	p.answerBy(inside, open)
	p.silentBy(ports)
	p.rendered(0, ranges.Spec.Overrides.LoadBalancerSourceRanges, ownPorts.Name, ranges.Name)

	p.load.during("both policies deleted", 2*time.Second, func() {
		for _, policy := range []client.Object{ownPorts, ranges} {
			if err := p.cluster.Client().Delete(p.Context(), policy); err != nil {
				p.Fatal(err)
			}
		}
		p.answerBy(inside, ports, open, closed)
	})
	p.rendered(frontPort, nil) // everybody is no restriction
}

// makeTeam makes a namespace with a Service that its owner opens to everybody.
func (p *pool) makeTeam() {
	p.Helper()
	c, outside := p.cluster.Client(), p.cluster.Outside()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: team, Labels: map[string]string{teamLabel: "blue"}}}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: front},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			Selector: map[string]string{"app": front}, LoadBalancerSourceRanges: []string{"0.0.0.0/0", "::/0"},
			Ports: []corev1.ServicePort{
				{Name: "tcp", Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: frontPort},
				{Name: "udp", Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: frontPort, Protocol: corev1.ProtocolUDP},
			},
		},
	}
	if err := errors.Join(c.Create(p.Context(), namespace), c.Create(p.Context(), service)); err != nil {
		p.Fatal(err)
	}
	before := client.MergeFrom(service.DeepCopy())
	for i, ip := range frontVIPs {
		service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		if err := p.cluster.RouteFromOutside(ip, p.cluster.Node(i)); err != nil {
			p.Fatal(err)
		}
		if _, err := outside.Exec(p.Context(), "ip", "address", "add", outsiders[i]+[]string{"/24", "/64"}[i], "dev", "eth0"); err != nil {
			p.Fatal(err)
		}
	}
	if err := c.Status().Patch(p.Context(), service, before); err != nil {
		p.Fatal(err)
	}
	for i, node := range p.cluster.Nodes() {
		spec := cluster.PodSpec{Namespace: team, Name: fmt.Sprintf("%s-%d", front, i+1), Labels: map[string]string{"app": front}}
		if _, err := node.RunPod(p.Context(), spec); err != nil {
			p.Fatal(err)
		}
	}
}

// ways are those to the Service of the team: by its cluster IPs, by its NodePorts on
// each node, and by the load balancer's addresses for clients that are allowed to and
// for others.
func (p *pool) ways() (inside, ports, open, closed way) {
	p.Helper()
	service := &corev1.Service{}
	if err := p.cluster.Client().Get(p.Context(), client.ObjectKey{Namespace: team, Name: front}, service); err != nil {
		p.Fatal(err)
	}
	outside := p.cluster.Outside()
	inside = way{name: "cluster IP", from: p.cluster.Node(2).Place}
	for _, ip := range service.Spec.ClusterIPs {
		inside.addresses = append(inside.addresses, at(ip, 80))
	}
	ports = way{name: "NodePort", from: outside}
	for _, node := range p.cluster.Nodes() {
		ports.addresses = append(ports.addresses, node.AddressPort(frontPort), node.AddressPort6(frontPort))
	}
	vips := []string{at(frontVIPs[0], 80), at(frontVIPs[1], 80)}
	open = way{name: "load balancer, allowed", from: outside, clients: allowed, addresses: vips}
	closed = way{name: "load balancer, others", from: outside, clients: outsiders, addresses: vips}
	return inside, ports, open, closed
}

// connect makes connections by a way at the same time, one for each address and
// protocol, and returns what came of them.
func (w way) connect(ctx context.Context) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var mu sync.Mutex // guards results
	results := map[string]error{}
	var all sync.WaitGroup
	for _, network := range []string{"tcp", "udp"} {
		for i, address := range w.addresses {
			local := ""
			if w.clients != nil {
				local = w.clients[i]
			}
			all.Go(func() {
				_, err := w.from.DialFrom(ctx, local, network, address)
				mu.Lock()
				defer mu.Unlock()
				results[fmt.Sprintf("%s, %s %s from %s %s", w.name, network, address, w.from.Name(), local)] = err
			})
		}
	}
	all.Wait()
	return results
}

// answerBy waits until the Service answers by all of these ways.
func (p *pool) answerBy(ways ...way) {
	p.Helper()
	p.expectBy(ways, func(err error) bool { return err == nil })
}

// silentBy waits until there is no answer by any of these ways.
func (p *pool) silentBy(ways ...way) {
	p.Helper()
	p.expectBy(ways, func(err error) bool {
		return errors.Is(err, cluster.ErrRejected) || errors.Is(err, cluster.ErrNoAnswer)
	})
}

func (p *pool) expectBy(ways []way, right func(err error) bool) {
	p.Helper()
	for _, w := range ways {
		p.until(func(ctx context.Context) error {
			for what, err := range w.connect(ctx) {
				if !right(err) {
					return fmt.Errorf("%s: %w", what, errors.Join(errors.New("not as expected"), err))
				}
			}
			return nil
		})
	}
}

// servicePolicy is a policy for all Services of the team.
func (p *pool) servicePolicy(name string, overrides v1alpha1.ServiceOverrides) *v1alpha1.ServiceProxyPolicy {
	return &v1alpha1.ServiceProxyPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ServiceProxyPolicySpec{
			NamespaceSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{teamLabel: "blue"}},
			Overrides:         overrides,
		},
	}
}

// apply creates a policy and waits until it reports that its one Service has what it
// wants.
func (p *pool) apply(policy *v1alpha1.ServiceProxyPolicy) {
	p.Helper()
	if err := p.cluster.Client().Create(p.Context(), policy); err != nil {
		p.Fatal(err)
	}
	p.until(func(ctx context.Context) error {
		if err := p.cluster.Client().Get(ctx, client.ObjectKeyFromObject(policy), policy); err != nil {
			return err
		}
		s := &policy.Status
		if err := rollouts.InEffect(s.Conditions, s.ObservedGeneration, policy.Generation); err != nil {
			return err
		}
		if s.Services != 1 || s.Applied != 1 || s.Ineffective != 0 {
			return fmt.Errorf("of one Service the status counts %+v", *s)
		}
		return nil
	})
}

// rendered waits until the rendered Service has a NodePort and source
// ranges, and is shaped by these policies.
func (p *pool) rendered(nodePort int32, ranges []string, policies ...string) {
	p.Helper()
	p.until(func(ctx context.Context) error {
		rules := &v1alpha1.ServiceProxyRules{}
		if err := p.cluster.Client().Get(ctx, client.ObjectKey{Name: team + "." + front}, rules); err != nil {
			return err
		}
		spec := &rules.Spec
		if !slices.Equal(spec.Policies, policies) || !slices.Equal(spec.LoadBalancerSourceRanges, ranges) {
			return fmt.Errorf("%s is shaped by %q and has source ranges %q; want %q and %q", rules.Name, spec.Policies, spec.LoadBalancerSourceRanges, policies, ranges)
		}
		for _, port := range spec.Ports {
			if port.NodePort != nodePort {
				return fmt.Errorf("%s has NodePort %d, want %d", rules.Name, port.NodePort, nodePort)
			}
		}
		return nil
	})
}
