package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// The addresses that stand for a load balancer's and for an external one.
const (
	loadBalancerIP = "203.0.113.10"
	localIP        = "203.0.113.11"
	shortLivedIP   = "203.0.113.12"
	externalIP     = "198.51.100.20"
	outsideIP      = "172.20.0.200" // of the client outside
)

func objectMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// createServices creates all Services of the demo and plays the load balancer.
func (d *demo) createServices(ctx context.Context) error {
	d.report.section("Services of every type")
	return d.report.need("kubectl apply -f test/demo/services.yaml", func() (string, error) {
		if err := d.apply(ctx, "services.yaml", servicesYAML); err != nil {
			return "", err
		}
		for name, ip := range map[string]string{
			"load-balancer": loadBalancerIP, "local-outside": localIP, "short-lived": shortLivedIP,
		} {
			service := &corev1.Service{ObjectMeta: objectMeta(namespace, name)}
			patch := fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, ip)
			if err := d.cluster.Client().Status().Patch(ctx, service, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
				return "", err
			}
		}
		var list corev1.ServiceList
		if err := d.cluster.Client().List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return "", err
		}
		d.services = map[string]*corev1.Service{}
		for i := range list.Items {
			d.services[list.Items[i].Name] = &list.Items[i]
		}
		return fmt.Sprintf("%d Services", len(d.services)), d.routeFromOutside()
	})
}

// routeFromOutside sends the Services' addresses from outside to nodes, as
// routers in front of a cluster do. node-3, which has no web pod, gets the load
// balancer's.
func (d *demo) routeFromOutside() error {
	var errs []error
	for ip, node := range map[string]int{
		loadBalancerIP: 2, localIP: 1, shortLivedIP: 0, externalIP: 0,
		d.services["cluster-ip"].Spec.ClusterIP: 1,
	} {
		errs = append(errs, d.cluster.RouteFromOutside(ip, d.cluster.Node(node)))
	}
	return errors.Join(errs...)
}

// clusterAddress is a Service's cluster address with port 80.
func (d *demo) clusterAddress(name string) string { return at(d.services[name].Spec.ClusterIP, 80) }

func at(ip string, port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }

// everyTypeAnswers checks each type of Service from a pod, a node and outside.
func (d *demo) everyTypeAnswers(ctx context.Context) error {
	visitor, node, outside := d.visitor.Place, d.cluster.Node(2).Place, d.cluster.Outside()
	var nodePorts []string
	for _, n := range d.cluster.Nodes() {
		nodePorts = append(nodePorts, n.AddressPort(30080))
	}
	for _, kind := range []struct{ name, address string }{
		{"ClusterIP", d.clusterAddress("cluster-ip")},
		{"LoadBalancer", at(loadBalancerIP, 80)},
		{"externalIPs", at(externalIP, 80)},
	} {
		for _, from := range []struct {
			words string
			place *cluster.Place
		}{{"a pod", visitor}, {"a node", node}, {"outside", outside}} {
			title := fmt.Sprintf("%s: %s answers from %s, TCP and UDP", kind.name, kind.address, from.words)
			d.report.check(title, func() (string, error) {
				return "", answers(ctx, from.place, kind.address, "web-1", "web-2", "web-3")
			})
		}
	}
	for _, from := range []struct {
		words     string
		place     *cluster.Place
		addresses []string
	}{
		{"a pod", visitor, nodePorts},
		{"a node", node, nodePorts},
		{"outside", outside, nodePorts},
	} {
		title := fmt.Sprintf("NodePort: 30080 of each node answers from %s, TCP and UDP", from.words)
		d.report.check(title, func() (string, error) {
			for _, address := range from.addresses {
				if err := answers(ctx, from.place, address, "web-1", "web-2", "web-3"); err != nil {
					return "", err
				}
			}
			return "", nil
		})
	}
	if d.mode == v1alpha1.ModeIPVS || d.mode == v1alpha1.ModeNFTables {
		d.report.check("NodePort: nothing answers at 127.0.0.1:30080 in this mode", func() (string, error) {
			return "", silent(ctx, node, "tcp", "127.0.0.1:30080")
		})
	} else {
		d.report.check("NodePort: 127.0.0.1:30080 answers on a node, TCP", func() (string, error) {
			return "", expect(ctx, node, "tcp", "127.0.0.1:30080", "web-1", "web-2", "web-3")
		})
	}
	return d.answersIPv6(ctx)
}

// answersIPv6 checks the addresses of a dual-stack Service that are IPv6.
func (d *demo) answersIPv6(ctx context.Context) error {
	clusterIP := d.services["node-port"].Spec.ClusterIPs[1]
	if err := d.cluster.RouteFromOutside(clusterIP, d.cluster.Node(1)); err != nil {
		return err
	}
	for _, from := range []struct {
		words string
		place *cluster.Place
	}{{"a pod", d.visitor.Place}, {"a node", d.cluster.Node(2).Place}, {"outside", d.cluster.Outside()}} {
		title := fmt.Sprintf("IPv6: ClusterIP and NodePort answer from %s, TCP and UDP", from.words)
		d.report.check(title, func() (string, error) {
			addresses := []string{at(clusterIP, 80)}
			for _, n := range d.cluster.Nodes() {
				addresses = append(addresses, n.AddressPort6(30080))
			}
			for _, address := range addresses {
				if err := answers(ctx, from.place, address, "web-1", "web-2", "web-3"); err != nil {
					return "", err
				}
			}
			return clusterIP, nil
		})
	}
	return nil
}

// balancing checks how connections are spread.
func (d *demo) balancing(ctx context.Context) error {
	d.report.section("Balancing")
	d.report.check("60 connections from a pod go to all three endpoints", func() (string, error) {
		t, err := onlyTo(ctx, d.visitor.Place, d.clusterAddress("cluster-ip"), 60, "web-1", "web-2", "web-3")
		return t.String(), err
	})
	if why := map[v1alpha1.ProxyMode]string{v1alpha1.ModeIPVS: "the scheduler is rr", v1alpha1.ModeUserspace: "they take turns"}[d.mode]; why != "" {
		d.report.check("each endpoint gets as many, because "+why, func() (string, error) {
			t, err := onlyTo(ctx, d.cluster.Node(0).Place, d.clusterAddress("cluster-ip"), 60, "web-1", "web-2", "web-3")
			for server, count := range t {
				if count != 20 {
					err = errors.Join(err, fmt.Errorf("%s gets %d of 60", server, count))
				}
			}
			return t.String(), err
		})
	}
	d.report.check("60 connections from outside, by the load balancer's address", func() (string, error) {
		t, err := onlyTo(ctx, d.cluster.Outside(), at(loadBalancerIP, 80), 60, "web-1", "web-2", "web-3")
		return t.String(), err
	})
	d.report.check("sessionAffinity ClientIP: 20 connections, one endpoint", func() (string, error) {
		t, err := connect(ctx, d.visitor.Place, d.clusterAddress("sticky"), 20)
		if err == nil && len(t) != 1 {
			err = fmt.Errorf("they went to %s", t)
		}
		return t.String(), err
	})
	title, seen := "the server sees the pod's own address", d.visitor.IP()
	if d.mode == v1alpha1.ModeUserspace {
		title, seen = "the server sees node-3, whose agent has connected to it", d.cluster.Node(2).Address()
	}
	d.report.check(title, func() (string, error) { return seen, d.sees(ctx, seen) })
	d.report.check("a pod reaches itself by its own Service", func() (string, error) {
		var err error
		d.single, err = d.cluster.Node(0).RunPod(ctx, d.singleSpec())
		if err != nil {
			return "", err
		}
		return "", soon(ctx, d.single.Place, "tcp", d.clusterAddress("single"), "single")
	})
	return nil
}

func (d *demo) singleSpec() cluster.PodSpec {
	return cluster.PodSpec{Namespace: namespace, Name: "single", Labels: map[string]string{"app": "single"}}
}

// localPolicies checks externalTrafficPolicy and internalTrafficPolicy.
func (d *demo) localPolicies(ctx context.Context) error {
	d.report.section("Traffic policies")
	outside := d.cluster.Outside()
	d.report.check("Cluster: from outside, the server sees a node", func() (string, error) {
		answer, err := outside.Dial(ctx, "tcp", at(loadBalancerIP, 80))
		if err == nil && answer.Client.Addr().String() != d.cluster.Node(2).Address() {
			err = fmt.Errorf("it sees %s, the node that got the packet has %s", answer.Client.Addr(), d.cluster.Node(2).Address())
		}
		return answer.Client.Addr().String(), err
	})
	for i, servers := range [][]string{{"web-1"}, {"web-2", "web-3"}} {
		node := d.cluster.Node(i)
		title, seen := fmt.Sprintf("externalTrafficPolicy Local by %s: own pods, client's address", node.Name()), []string{outsideIP}
		if d.mode == v1alpha1.ModeUserspace {
			title, seen = fmt.Sprintf("externalTrafficPolicy Local by %s: own pods, which see the node", node.Name()), []string{node.Address(), node.PodGateway()}
		}
		d.report.check(title, func() (string, error) {
			if err := d.cluster.RouteFromOutside(localIP, node); err != nil {
				return "", err
			}
			return strings.Join(seen, " or "), d.showsClients(ctx, []string{at(localIP, 80), node.AddressPort(30081)}, servers, seen)
		})
	}
	node := d.cluster.Node(2)
	d.report.check("externalTrafficPolicy Local by node-3, without endpoints: silence", func() (string, error) {
		err := errors.Join(d.cluster.RouteFromOutside(localIP, node),
			silent(ctx, outside, "tcp", at(localIP, 80)),
			silent(ctx, outside, "tcp", node.AddressPort(30081)))
		return "", errors.Join(err, d.cluster.RouteFromOutside(localIP, d.cluster.Node(1)))
	})
	d.report.check("a pod on node-3 reaches that load balancer address all the same", func() (string, error) {
		return "", expect(ctx, d.visitor.Place, "tcp", at(localIP, 80), "web-1", "web-2", "web-3")
	})
	d.report.check("internalTrafficPolicy Local: a pod on node-1 reaches web-1 only", func() (string, error) {
		t, err := onlyTo(ctx, d.web[0].Place, d.clusterAddress("local-inside"), 20, "web-1")
		return t.String(), err
	})
	d.report.check("internalTrafficPolicy Local: on node-3, silence", func() (string, error) {
		return "", silent(ctx, d.visitor.Place, "tcp", d.clusterAddress("local-inside"))
	})
	return nil
}

// sees wants that a server sees the visitor at an address.
func (d *demo) sees(ctx context.Context, want string) error {
	answer, err := d.visitor.Dial(oneTry(ctx), "tcp", d.clusterAddress("cluster-ip"))
	if err == nil && answer.Client.Addr().String() != want {
		err = fmt.Errorf("the server sees %s, want %s", answer.Client.Addr(), want)
	}
	return err
}

// showsClients connects from outside and wants that only servers answer, which see the client at
// one of some addresses.
func (d *demo) showsClients(ctx context.Context, addresses, servers, seen []string) error {
	for _, address := range addresses {
		for range 10 {
			answer, err := d.cluster.Outside().Dial(ctx, "tcp", address)
			if err != nil {
				return err
			}
			if !slices.Contains(servers, answer.Server) || !slices.Contains(seen, answer.Client.Addr().String()) {
				return fmt.Errorf("%s answered, which saw %s; want one of %v, which sees one of %v", answer.Server, answer.Client.Addr(), servers, seen)
			}
		}
	}
	return nil
}
