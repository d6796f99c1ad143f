package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// childVariable makes this test binary run a cluster and wait to be killed.
const childVariable = "NODEPROXY_TEST_CLUSTER_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		runChild()
	}
	os.Exit(m.Run())
}

// needsRoot explains why a test is left out for an ordinary user.
func needsRoot(t *testing.T) {
	t.Helper()
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
}

// start starts a cluster that is stopped at the end.
func start(t *testing.T, options cluster.Options) *cluster.Cluster {
	t.Helper()
	needsRoot(t)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	t.Cleanup(stop)
	options.Progress = os.Stderr
	c, err := cluster.Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// processes lists those of the cluster with the given number.
func processes(t *testing.T, number int) []string {
	t.Helper()
	left, err := cluster.Leftovers(number)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(left, func(thing string) bool { return !strings.HasPrefix(thing, "process ") })
}

// remaining lists which of a cluster's processes still run. Everything else may be another
// cluster's, which got the number from a suite beside this one. Such a suite may also be
// removing what a killed run has left.
func remaining(t *testing.T, number int, before []string) []string {
	t.Helper()
	return slices.DeleteFunc(processes(t, number), func(p string) bool { return !slices.Contains(before, p) })
}

func web(name string) cluster.PodSpec {
	return cluster.PodSpec{Name: name, Labels: map[string]string{"app": "web"}}
}

func TestPodsAndSlices(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 2, Zones: []string{"zone-a", "zone-b"}})
	ctx := t.Context()
	g := NewWithT(t)

	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Selector:       map[string]string{"app": "web"},
			Ports:          []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
		},
	}
	g.Expect(c.Client().Create(ctx, service)).To(Succeed())
	a, err := c.Node(0).RunPod(ctx, web("a"))
	g.Expect(err).NotTo(HaveOccurred())
	b, err := c.Node(1).RunPod(ctx, web("b"))
	g.Expect(err).NotTo(HaveOccurred())
	sameNode, err := c.Node(1).RunPod(ctx, cluster.PodSpec{Name: "c"})
	g.Expect(err).NotTo(HaveOccurred())

	t.Run("pods reach pods without any Service", func(t *testing.T) {
		g := NewWithT(t)
		for _, network := range []string{"tcp", "udp"} {
			for _, from := range []*cluster.Place{a.Place, sameNode.Place, c.Node(0).Place, c.Node(1).Place} {
				answer, err := from.Dial(ctx, network, b.Address(8080))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(answer.Server).To(Equal("b"))
				if from == a.Place {
					g.Expect(answer.Client.Addr().String()).To(Equal(a.IP()), "the server sees the pod itself")
				}
				answer, err = from.Dial(ctx, network, b.Address6(8080))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(answer.Server).To(Equal("b"))
				if from == a.Place {
					g.Expect(answer.Client.Addr().String()).To(Equal(a.IP6()), "the server sees the pod itself")
				}
			}
		}
	})

	t.Run("failures are distinguished", func(t *testing.T) {
		g := NewWithT(t)
		_, err := a.Dial(ctx, "tcp", b.Address(81))
		g.Expect(err).To(MatchError(cluster.ErrRejected))
		_, err = a.Dial(ctx, "udp", b.Address(81))
		g.Expect(err).To(MatchError(cluster.ErrRejected))
		_, err = a.Dial(ctx, "tcp", b.Address6(81))
		g.Expect(err).To(MatchError(cluster.ErrRejected))
		for _, network := range []string{"tcp", "udp"} {
			for _, ip := range service.Spec.ClusterIPs {
				short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				_, err = a.Dial(short, network, net.JoinHostPort(ip, "80"))
				cancel()
				g.Expect(err).To(MatchError(cluster.ErrNoAnswer), "nothing programs Services here")
			}
		}
	})

	t.Run("endpoints follow the pods", func(t *testing.T) {
		g := NewWithT(t)
		state := func() map[string]string { return endpoints(ctx, g, c) }
		g.Eventually(state, "20s").Should(Equal(map[string]string{
			a.IP(): "node-1 zone-a ready serving", b.IP(): "node-2 zone-b ready serving",
			a.IP6(): "node-1 zone-a ready serving", b.IP6(): "node-2 zone-b ready serving",
		}))
		g.Expect(a.SetReady(ctx, false)).To(Succeed())
		g.Eventually(state, "20s").Should(And(HaveKeyWithValue(a.IP(), "node-1 zone-a"), HaveKeyWithValue(a.IP6(), "node-1 zone-a")))
		g.Expect(b.Terminate(ctx)).To(Succeed())
		g.Eventually(state, "20s").Should(HaveKeyWithValue(b.IP(), "node-2 zone-b serving terminating"))
		answer, err := a.Dial(ctx, "tcp", b.Address(8080))
		g.Expect(err).NotTo(HaveOccurred(), "a terminating pod still answers")
		g.Expect(answer.Server).To(Equal("b"))
		g.Expect(b.Delete(ctx)).To(Succeed())
		g.Eventually(state, "20s").Should(Equal(map[string]string{a.IP(): "node-1 zone-a", a.IP6(): "node-1 zone-a"}))
	})

	t.Run("an address is used again", func(t *testing.T) {
		g := NewWithT(t)
		again, err := c.Node(1).RunPod(ctx, cluster.PodSpec{Name: "b", Address: b.IP()})
		g.Expect(err).NotTo(HaveOccurred())
		answer, err := a.Dial(ctx, "tcp", again.Address(8080))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(answer.Server).To(Equal("b"))
		answer, err = a.Dial(ctx, "tcp", again.Address6(8080))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(answer.Server).To(Equal("b"))
		_, err = c.Node(1).RunPod(ctx, cluster.PodSpec{Name: "d", Address: b.IP()})
		g.Expect(err).To(MatchError(ContainSubstring("not free")))
	})

	t.Run("held connections", func(t *testing.T) {
		g := NewWithT(t)
		conn, err := c.Node(0).Connect(ctx, "tcp", sameNode.Address(8080))
		g.Expect(err).NotTo(HaveOccurred())
		defer conn.Close()
		first, err := conn.Ask(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		second, err := conn.Ask(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(second).To(Equal(first))
		g.Expect(sameNode.Crash()).To(Succeed())
		_, err = conn.Ask(ctx)
		g.Expect(err).To(MatchError(cluster.ErrClosed))
	})

	t.Run("outside", func(t *testing.T) {
		g := NewWithT(t)
		_, err := c.Node(1).RunPod(ctx, cluster.PodSpec{
			Name: "host", HostNetwork: true, Ports: []cluster.Port{{Number: 9000}, {Number: 9000, Protocol: corev1.ProtocolUDP}},
		})
		g.Expect(err).NotTo(HaveOccurred())
		for _, network := range []string{"tcp", "udp"} {
			answer, err := c.Outside().Dial(ctx, network, c.Node(1).AddressPort(9000))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(answer.Server).To(Equal("host"))
			g.Expect(answer.Client.Addr().String()).To(Equal("172.20.0.200"))
			answer, err = c.Outside().Dial(ctx, network, c.Node(1).AddressPort6(9000))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(answer.Server).To(Equal("host"))
			g.Expect(answer.Client.Addr().String()).To(Equal("fd00:172:20::200"))
		}
		// A load balancer's address is like any of the node's once it is routed
		// there.
		_, err = c.Node(1).Exec(ctx, "ip", "address", "add", "203.0.113.9/32", "dev", "lo")
		g.Expect(err).NotTo(HaveOccurred())
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err = c.Outside().Dial(short, "tcp", "203.0.113.9:8080")
		g.Expect(err).To(MatchError(cluster.ErrNoAnswer))
		g.Expect(c.RouteFromOutside("203.0.113.9", c.Node(1))).To(Succeed())
		_, err = c.Outside().Dial(ctx, "tcp", "203.0.113.9:8080")
		g.Expect(err).To(MatchError(cluster.ErrRejected))
		_, err = c.Node(1).Exec(ctx, "ip", "address", "add", "2001:db8::9/128", "dev", "lo")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(c.RouteFromOutside("2001:db8::9", c.Node(1))).To(Succeed())
		_, err = c.Outside().Dial(ctx, "tcp", "[2001:db8::9]:8080")
		g.Expect(err).To(MatchError(cluster.ErrRejected))
	})

	t.Run("kubectl and permissions", func(t *testing.T) {
		g := NewWithT(t)
		out, err := c.Kubectl(ctx, "get", "nodes", "--no-headers")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.Count(out, " Ready ")).To(Equal(2), out)
		out, err = c.Kubectl(ctx, "version")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(out).To(ContainSubstring("Server Version: v1."))
		stranger, err := c.KubeconfigFor("stranger", "stranger")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = c.Node(0).Exec(ctx, filepath.Join(c.Assets(), "kubectl"), "--kubeconfig", stranger, "get", "nodes")
		g.Expect(err).To(MatchError(ContainSubstring("Forbidden")))
	})
}

// endpoints lists the endpoints of the Service "web" with their state.
func endpoints(ctx context.Context, g *WithT, c *cluster.Cluster) map[string]string {
	var slices discoveryv1.EndpointSliceList
	g.Expect(c.Client().List(ctx, &slices, client.InNamespace("default"), client.MatchingLabels{discoveryv1.LabelServiceName: "web"})).To(Succeed())
	found := map[string]string{}
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			words := []string{*e.NodeName, *e.Zone}
			for _, c := range []struct {
				word string
				set  *bool
			}{{"ready", e.Conditions.Ready}, {"serving", e.Conditions.Serving}, {"terminating", e.Conditions.Terminating}} {
				if c.set != nil && *c.set {
					words = append(words, c.word)
				}
			}
			found[e.Addresses[0]] = strings.Join(words, " ")
		}
	}
	return found
}

func TestTwoClustersSideBySide(t *testing.T) {
	first := start(t, cluster.Options{Nodes: 1})
	second := start(t, cluster.Options{Nodes: 1})
	g := NewWithT(t)
	_, err := first.Node(0).RunPod(t.Context(), web("first"))
	g.Expect(err).NotTo(HaveOccurred())
	pod, err := second.Node(0).RunPod(t.Context(), web("second"))
	g.Expect(err).NotTo(HaveOccurred())
	answer, err := second.Node(0).Dial(t.Context(), "tcp", pod.Address(8080))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(answer.Server).To(Equal("second"), "both pods have the same address, each in its own cluster")

	g.Expect(first.Stop()).To(Succeed())
	answer, err = second.Node(0).Dial(t.Context(), "tcp", pod.Address(8080))
	g.Expect(err).NotTo(HaveOccurred(), "the end of one cluster is nothing to the other")
	g.Expect(answer.Server).To(Equal("second"))
}

func TestLinkOfAnotherProgramStays(t *testing.T) {
	g := NewWithT(t)
	first := start(t, cluster.Options{})
	number := first.Number()
	g.Expect(first.Stop()).To(Succeed())

	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("np%d-root", number)
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("np%d-peer", number)}
	g.Expect(netlink.LinkAdd(link)).To(Succeed())
	t.Cleanup(func() { g.Expect(netlink.LinkDel(link)).To(Succeed()) })
	second := start(t, cluster.Options{})
	g.Expect(second.Number()).NotTo(Equal(number))
	g.Expect(second.Stop()).To(Succeed())
	_, err := netlink.LinkByName(attrs.Name)
	g.Expect(err).NotTo(HaveOccurred())
}

// TestNamespacesOfOthersBeside uses "ip netns" while a cluster is up, as an
// administrator who looks around does. Both must be removable afterwards.
func TestNamespacesOfOthersBeside(t *testing.T) {
	start(t, cluster.Options{Nodes: 1})
	name := fmt.Sprintf("beside-%d", os.Getpid())
	for _, args := range [][]string{{"netns", "add", name}, {"netns", "del", name}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
}

func TestEndOfContextRemovesTheCluster(t *testing.T) {
	needsRoot(t)
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	c, err := cluster.Start(ctx, cluster.Options{Nodes: 1, Progress: os.Stderr})
	g.Expect(err).NotTo(HaveOccurred())
	before := processes(t, c.Number())
	g.Expect(before).NotTo(BeEmpty(), "else this test sees nothing")
	cancel()
	g.Eventually(func() []string { return remaining(t, c.Number(), before) }, "30s").Should(BeEmpty())
	g.Expect(c.Stop()).To(Succeed())
	_, err = c.AddNode(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("stopped")))
}

// runChild starts a cluster, states its number and waits.
func runChild() {
	keep := os.Getenv(childVariable) == "keep"
	c, err := cluster.Start(context.Background(), cluster.Options{Nodes: 1, Progress: os.Stderr, Keep: keep})
	if err == nil {
		_, err = c.Node(0).RunPod(context.Background(), web("left"))
	}
	if err == nil && keep {
		err = c.Leave()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(c.Number())
	if keep {
		os.Exit(0)
	}
	select {}
}

// child runs this test binary as runChild and returns its cluster's number.
func child(t *testing.T, mode string) (*exec.Cmd, int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+mode)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var number int
	if _, err := fmt.Fscan(stdout, &number); err != nil {
		t.Fatalf("the child reports no number: %v", errors.Join(err, cmd.Wait()))
	}
	return cmd, number
}

func TestCleanRemovesWhatAKilledRunLeft(t *testing.T) {
	needsRoot(t)
	g := NewWithT(t)
	cmd, number := child(t, "crash")
	var out strings.Builder
	g.Expect(cluster.Clean(t.Context(), &out, number)).To(Succeed())
	g.Expect(out.String()).To(ContainSubstring(fmt.Sprintf("np%d is in use by process %d", number, cmd.Process.Pid)))
	before := processes(t, number)
	g.Expect(before).NotTo(BeEmpty(), "Clean spares a living owner's cluster")

	g.Expect(cmd.Process.Kill()).To(Succeed())
	g.Expect(cmd.Wait()).NotTo(Succeed())
	g.Expect(cluster.Clean(t.Context(), os.Stderr, number)).To(Succeed())
	g.Eventually(func() []string { return remaining(t, number, before) }, "30s").Should(BeEmpty())
}

func TestStartRemovesWhatAKilledRunLeft(t *testing.T) {
	needsRoot(t)
	g := NewWithT(t)
	cmd, number := child(t, "crash")
	before := processes(t, number)
	g.Expect(before).NotTo(BeEmpty())
	g.Expect(cmd.Process.Kill()).To(Succeed())
	g.Expect(cmd.Wait()).NotTo(Succeed())
	start(t, cluster.Options{})
	g.Eventually(func() []string { return remaining(t, number, before) }, "30s").Should(BeEmpty())
}

func TestLeftClusterRunsUntilClean(t *testing.T) {
	needsRoot(t)
	g := NewWithT(t)
	cmd, number := child(t, "keep")
	g.Expect(cmd.Wait()).To(Succeed())

	other := start(t, cluster.Options{})
	g.Expect(other.Number()).NotTo(Equal(number), "a left cluster is not replaced")
	g.Expect(other.Stop()).To(Succeed())
	left := processes(t, number)
	for _, program := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "echo -name left"} {
		g.Expect(left).To(ContainElement(ContainSubstring(program)))
	}
	kubectl := exec.CommandContext(t.Context(), filepath.Join(other.Assets(), "kubectl"),
		"--kubeconfig", fmt.Sprintf("/run/nodeproxy-test/%d/pki/admin.kubeconfig", number), "get", "pod", "left")
	kubectl.Env = append(os.Environ(), "NO_PROXY=*")
	text, err := kubectl.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(text))

	var out strings.Builder
	g.Expect(cluster.Clean(t.Context(), &out, number)).To(Succeed())
	g.Expect(out.String()).To(ContainSubstring(fmt.Sprintf("Removed cluster np%d", number)))
	g.Expect(remaining(t, number, left)).To(BeEmpty())
}
