package cluster_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
)

// TestServicesByKubeProxy runs the reference on our nodes: where Services work
// by kube-proxy, a test that fails by nodeproxy has found a fault of nodeproxy,
// not of the local cluster.
func TestServicesByKubeProxy(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 2})
	ctx := t.Context()
	g := NewWithT(t)
	assets, err := binaries.Ensure(ctx, os.Stderr, binaries.KubeProxy)
	g.Expect(err).NotTo(HaveOccurred())
	kubeconfig, err := c.KubeconfigFor("kube-proxy", "system:kube-proxy")
	g.Expect(err).NotTo(HaveOccurred())
	for _, node := range c.Nodes() {
		_, err := node.Start(cluster.Command{Path: filepath.Join(assets, "kube-proxy"), Args: []string{
			"--kubeconfig", kubeconfig, "--hostname-override", node.Name(), "--proxy-mode", "iptables",
			"--cluster-cidr", cluster.PodRanges, "--conntrack-max-per-core", "0",
		}})
		g.Expect(err).NotTo(HaveOccurred())
	}
	a, err := c.Node(0).RunPod(ctx, web("a"))
	g.Expect(err).NotTo(HaveOccurred())
	b, err := c.Node(1).RunPod(ctx, cluster.PodSpec{Name: "b"})
	g.Expect(err).NotTo(HaveOccurred())
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type:     corev1.ServiceTypeNodePort,
			Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{
				{Name: "tcp", Port: 80, NodePort: 30080, TargetPort: intstr.FromInt32(8080)},
				{Name: "udp", Port: 80, NodePort: 30080, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolUDP},
			},
			ExternalIPs:    []string{"198.51.100.20", "2001:db8::20"},
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
		},
	}
	g.Expect(c.Client().Create(ctx, service)).To(Succeed())
	g.Expect(c.RouteFromOutside("198.51.100.20", c.Node(1))).To(Succeed())
	g.Expect(c.RouteFromOutside("2001:db8::20", c.Node(1))).To(Succeed())
	ip6 := service.Spec.ClusterIPs[1]

	for name, tc := range map[string]struct {
		from    *cluster.Place
		address string
		sees    string // the client's address at the server
	}{
		"pod to ClusterIP on another node":    {b.Place, service.Spec.ClusterIP + ":80", b.IP()},
		"pod to itself by ClusterIP":          {a.Place, service.Spec.ClusterIP + ":80", "10.244.1.1"},
		"node to ClusterIP":                   {c.Node(1).Place, service.Spec.ClusterIP + ":80", c.Node(1).Address()},
		"outside to a node without endpoints": {c.Outside(), c.Node(1).AddressPort(30080), c.Node(1).Address()},
		"outside to a node with endpoints":    {c.Outside(), c.Node(0).AddressPort(30080), "10.244.1.1"},
		"outside to an external address":      {c.Outside(), "198.51.100.20:80", c.Node(1).Address()},
		"IPv6, pod to ClusterIP":              {b.Place, "[" + ip6 + "]:80", b.IP6()},
		"IPv6, pod to itself by ClusterIP":    {a.Place, "[" + ip6 + "]:80", "fd00:10:244:1::1"},
		"IPv6, outside to a node":             {c.Outside(), c.Node(1).AddressPort6(30080), c.Node(1).Address6()},
		"IPv6, outside to an external one":    {c.Outside(), "[2001:db8::20]:80", c.Node(1).Address6()},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			for _, network := range []string{"tcp", "udp"} {
				var answer cluster.Answer
				g.Eventually(func() error {
					var err error
					answer, err = tc.from.Dial(ctx, network, tc.address)
					return err
				}, 30*time.Second).Should(Succeed())
				g.Expect(answer.Server).To(Equal("a"), network)
				g.Expect(answer.Client.Addr().String()).To(Equal(tc.sees), network)
			}
		})
	}
	t.Run("pod to the API server's own Service", func(t *testing.T) {
		g := NewWithT(t)
		conn, err := b.Connect(ctx, "tcp", "10.96.0.1:443")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(conn.Close()).To(Succeed())
	})
}
