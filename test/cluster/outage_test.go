package cluster_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
)

// TestOutages ends programs of the control plane and reboots a node.
func TestOutages(t *testing.T) {
	g := NewWithT(t)
	c := start(t, cluster.Options{Nodes: 2})
	ctx, node, other := t.Context(), c.Node(0), c.Node(1)
	pod, err := node.RunPod(ctx, cluster.PodSpec{Name: "web"})
	g.Expect(err).NotTo(HaveOccurred())

	for _, program := range []binaries.Program{binaries.APIServer, binaries.Etcd, binaries.ControllerManager} {
		g.Expect(c.KillProgram(program)).To(Succeed())
		g.Expect(c.KillProgram(program)).To(MatchError(ContainSubstring("does not run")))
		if program == binaries.APIServer {
			_, err := c.Kubectl(ctx, "get", "nodes", "--request-timeout=1s")
			g.Expect(err).To(HaveOccurred())
		}
		g.Expect(c.StartProgram(ctx, program)).To(Succeed())
		g.Expect(c.StartProgram(ctx, program)).To(MatchError(ContainSubstring("runs already")))
		g.Expect(c.Client().Get(ctx, client.ObjectKey{Namespace: "default", Name: "web"}, &corev1.Pod{})).To(Succeed(), "what was stored is there")
	}

	_, err = node.Exec(ctx, "iptables", "-t", "nat", "-N", "BEFORE")
	g.Expect(err).NotTo(HaveOccurred())
	process, err := node.Start(cluster.Command{Path: "sleep", Args: []string{"1000"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(node.Reboot(ctx)).To(Succeed())
	g.Eventually(process.Done()).Should(BeClosed())
	_, err = node.Exec(ctx, "iptables", "-t", "nat", "-S", "BEFORE")
	g.Expect(err).To(HaveOccurred(), "rules of before")
	_, err = other.Dial(ctx, "tcp", pod.Address(8080))
	g.Expect(err).To(HaveOccurred(), "pods of before")
	g.Expect(pod.Delete(ctx)).To(Succeed())
	g.Expect(node.Pods()).To(BeEmpty())

	pod, err = node.RunPod(ctx, cluster.PodSpec{Name: "web"})
	g.Expect(err).NotTo(HaveOccurred())
	for _, from := range []*cluster.Place{other.Place, node.Place} {
		for _, address := range []string{pod.Address(8080), pod.Address6(8080)} {
			// Neighbors may still be looking for the pod of before.
			g.Eventually(func() (string, error) {
				answer, err := from.Dial(ctx, "tcp", address)
				return answer.Server, err
			}).WithTimeout(20 * time.Second).Should(Equal("web"))
		}
	}
}
