package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/sctp"
)

// Addresses of the fixed Services. All of them answer on port 80.
const (
	plainIP    = "10.96.1.1" // all protocols, both families
	plainIP6   = "fd00:10:96::101"
	balancerIP = "203.0.113.10"
	externalIP = "198.51.100.20"
	rangesIP   = "203.0.113.11" // for the client outside alone
	closedIP   = "203.0.113.12" // for others alone
	localVIP   = "203.0.113.13" // policy Local
	insideIP   = "10.96.1.6"    // internal policy Local
	stickyIP   = "10.96.1.7"
	emptyIP    = "10.96.1.8" // no endpoints
	localIP    = "10.96.1.9" // the cluster IP of the one at localVIP

	plainPort  = 30080
	localPort  = 30081
	emptyPort  = 30082
	healthPort = 30090

	outsideIP = "172.20.0.200" // of the client outside
)

// startPods starts the pods that all tests use.
func (w *world) startPods(ctx context.Context) error {
	w.sctp = sctp.Available()
	first, second := w.cluster.Node(0), w.cluster.Node(1)
	for i, node := range []*cluster.Node{first, second, second} {
		pod, err := w.runPod(ctx, node, "web-"+strconv.Itoa(i+1), "web")
		if err != nil {
			return err
		}
		w.web = append(w.web, pod)
	}
	var err error
	if w.local, err = w.runPod(ctx, second, "local", "local"); err != nil {
		return err
	}
	for i, node := range w.cluster.Nodes() {
		pod, err := w.runPod(ctx, node, "visitor-"+strconv.Itoa(i+1), "visitor")
		if err != nil {
			return err
		}
		w.visitors = append(w.visitors, pod)
	}
	return nil
}

// runPod runs a pod of an app that answers on all protocols.
func (w *world) runPod(ctx context.Context, node *cluster.Node, name, app string) (*cluster.Pod, error) {
	ports := []cluster.Port{{Number: 8080}, {Number: 8080, Protocol: corev1.ProtocolUDP}}
	if w.sctp {
		ports = append(ports, cluster.Port{Number: 8080, Protocol: corev1.ProtocolSCTP})
	}
	return node.RunPod(ctx, cluster.PodSpec{Name: name, Labels: map[string]string{"app": app}, Ports: ports})
}

// createServices creates the fixed Services, and routes to their addresses by way of
// the first node.
func (w *world) createServices(ctx context.Context) error {
	families := corev1.IPFamilyPolicyRequireDualStack
	for _, s := range []*corev1.Service{
		service("plain", "web", func(s *corev1.ServiceSpec) {
			s.Type, s.IPFamilyPolicy = corev1.ServiceTypeNodePort, &families
			s.ClusterIP, s.ClusterIPs = plainIP, []string{plainIP, plainIP6}
			for i := range s.Ports {
				s.Ports[i].NodePort = plainPort
			}
			if w.sctp {
				s.Ports = append(s.Ports, port(corev1.ProtocolSCTP, plainPort))
			}
		}),
		service("balancer", "web", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeLoadBalancer }),
		service("external", "web", func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{externalIP} }),
		service("ranges", "web", func(s *corev1.ServiceSpec) {
			s.Type, s.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{outsideIP + "/32"}
		}),
		service("closed", "web", func(s *corev1.ServiceSpec) {
			s.Type, s.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{"192.0.2.0/24"}
		}),
		service("local", "local", func(s *corev1.ServiceSpec) {
			s.Type, s.ClusterIP = corev1.ServiceTypeLoadBalancer, localIP
			s.ExternalTrafficPolicy, s.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, healthPort
			for i := range s.Ports {
				s.Ports[i].NodePort = localPort
			}
		}),
		service("inside", "local", func(s *corev1.ServiceSpec) {
			local := corev1.ServiceInternalTrafficPolicyLocal
			s.ClusterIP, s.InternalTrafficPolicy = insideIP, &local
		}),
		service("sticky", "web", func(s *corev1.ServiceSpec) {
			s.ClusterIP, s.SessionAffinity = stickyIP, corev1.ServiceAffinityClientIP
			s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(600))}}
		}),
		service("empty", "none", func(s *corev1.ServiceSpec) {
			s.Type, s.ClusterIP = corev1.ServiceTypeNodePort, emptyIP
			s.Ports[0].NodePort = emptyPort
		}),
	} {
		if err := w.cluster.Client().Create(ctx, s); err != nil {
			return fmt.Errorf("creating Service %s: %w", s.Name, err)
		}
	}
	for name, ip := range map[string]string{"balancer": balancerIP, "ranges": rangesIP, "closed": closedIP, "local": localVIP} {
		if err := w.balance(ctx, name, ip); err != nil {
			return err
		}
	}
	return w.route(0, plainIP, plainIP6, balancerIP, externalIP, rangesIP, closedIP, localVIP, emptyIP)
}

// route sends what comes from outside for some addresses to a node.
func (w *world) route(node int, ips ...string) error {
	var errs []error
	for _, ip := range ips {
		errs = append(errs, w.cluster.RouteFromOutside(ip, w.cluster.Node(node)))
	}
	return errors.Join(errs...)
}

// balance gives a Service a load balancer's address.
func (w *world) balance(ctx context.Context, name, ip string) error {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	patch := fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, ip)
	return w.cluster.Client().Status().Patch(ctx, s, client.RawPatch("application/merge-patch+json", []byte(patch)))
}

// service is a Service with a TCP and a UDP port.
func service(name, app string, shape func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": app},
			Ports:    []corev1.ServicePort{port(corev1.ProtocolTCP, 0), port(corev1.ProtocolUDP, 0)},
		},
	}
	shape(&s.Spec)
	return s
}

func port(protocol corev1.Protocol, nodePort int32) corev1.ServicePort {
	return corev1.ServicePort{
		Name: "p" + string(protocol[0]+'a'-'A'), Protocol: protocol, Port: 80, TargetPort: intstr.FromInt32(8080), NodePort: nodePort,
	}
}

// create creates a Service, which goes with the test.
func (t test) create(s *corev1.Service) {
	t.Helper()
	if err := t.cluster.Client().Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(t.cluster.Client().Delete(t.ctx, s)); err != nil {
			t.Error(err)
		}
	})
}

// newIP returns a cluster IP that no test has had: what a Service leaves for a moment
// when it is deleted would answer for the next one.
func (w *world) newIP() string {
	w.newIPs++
	return "10.96.2." + strconv.Itoa(w.newIPs)
}

func at(ip string, port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }

// sub runs a part of a test under a name of its own.
func (t test) sub(name string, f func(t test)) {
	t.Helper()
	t.Run(name, func(inner *testing.T) { f(test{inner, t.world, t.pulse}) })
}
