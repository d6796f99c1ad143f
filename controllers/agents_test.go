package controllers_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// renewLease renews the Lease of a node's agent, with what it has applied.
func renewLease(ctx context.Context, node, applied string) {
	GinkgoHelper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: v1alpha1.AgentLeaseName(node)}}
	err := k8s.Get(ctx, client.ObjectKeyFromObject(lease), lease)
	Expect(client.IgnoreNotFound(err)).To(Succeed())
	lease.Annotations = map[string]string{v1alpha1.AnnotationAppliedResourceVersion: applied}
	lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &node, RenewTime: &metav1.MicroTime{Time: time.Now()}}
	if err != nil {
		Expect(k8s.Create(ctx, lease)).To(Succeed())
	} else {
		Expect(k8s.Update(ctx, lease)).To(Succeed())
	}
}

// programmedOn returns "status reason" of a node's condition Programmed.
func programmedOn(ctx context.Context, node string) func() (string, error) {
	return func() (string, error) {
		rules, err := nodeRules(ctx, node)()
		if err != nil {
			return "", err
		}
		c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
		if c == nil {
			return "absent", nil
		}
		return fmt.Sprintf("%s %s", c.Status, c.Reason), nil
	}
}

// pass advances the controller's time, no faster than it looks at the Leases:
// time in which it could not look does not count. Before each step it runs each.
func pass(d time.Duration, c *running, each func()) {
	GinkgoHelper()
	const step = 5 * time.Second
	for ; d > 0; d -= step {
		each()
		before := c.metric("nodeproxy_controller_agent_checks_total")
		testClock.putForward(step)
		Eventually(func() float64 { return c.metric("nodeproxy_controller_agent_checks_total") }).
			WithPolling(time.Millisecond).Should(BeNumerically(">", before))
	}
}

var _ = Describe("looking after the agents", func() {
	It("reports an agent without a heartbeat, and counts it until it is back", func(ctx SpecContext) {
		switchOn(ctx)
		createNode(ctx, "n1")
		createNode(ctx, "n2")
		createNode(ctx, "n3")
		controller := startController()
		for _, n := range []string{"n1", "n2"} {
			report(ctx, n, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
			renewLease(ctx, n, "1")
		}
		Eventually(nodeRules(ctx, "n3")).ShouldNot(BeNil())
		pass(80*time.Second, controller, func() {})
		renewLease(ctx, "n1", "1")
		controller.looksAtLeases()
		Expect(programmedOn(ctx, "n3")()).To(Equal("absent"))
		pass(12*time.Second, controller, func() {})
		Eventually(programmedOn(ctx, "n2")).Should(Equal("Unknown AgentNotResponding"))
		Eventually(programmedOn(ctx, "n3")).Should(Equal("Unknown AgentNotResponding"))
		Expect(programmedOn(ctx, "n1")()).To(Equal("True Programmed"))
		Eventually(summary(ctx)).Should(SatisfyAll(
			HaveField("Nodes", Equal(v1alpha1.NodeCounts{Total: 3, Programmed: 1, Stale: 2, Lagging: 1})),
			WithTransform(ready, HavePrefix("False NodesNotProgrammed: Node n2: no agent has ever reported"))))

		By("a new controller, which writes nothing of it again")
		before := versions(ctx)
		controller.stop()
		controller = startController()
		controller.looksAtLeases()
		controller.looks(ctx, "service", "node", "rollout")
		Expect(versions(ctx)).To(Equal(before))

		By("the agent returning, which writes first and renews then")
		report(ctx, "n2", metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
		Eventually(summary(ctx)).Should(HaveField("Nodes.Stale", BeEquivalentTo(1)))
		pass(30*time.Second, controller, func() { renewLease(ctx, "n1", "1") })
		renewLease(ctx, "n2", "1")
		Expect(programmedOn(ctx, "n2")()).To(Equal("True Programmed"))
	})

	It("reports for how long, and writes that once a minute at most", func(ctx SpecContext) {
		switchOn(ctx)
		createNode(ctx, "n1")
		controller := startController()
		Eventually(func() error {
			rules, err := nodeRules(ctx, "n1")()
			if err != nil {
				return err
			}
			rules.Status.Agent = &v1alpha1.AgentReport{Version: "v0.1.0"}
			return k8s.Status().Update(ctx, rules)
		}).Should(Succeed())
		pass(95*time.Second, controller, func() {})
		Eventually(summary(ctx)).Should(WithTransform(ready, Equal("False NodesNotProgrammed: Node n1: no heartbeat for 1m30s. Check that nodeproxy-agent runs there.")))
		written := func() string {
			np := &v1alpha1.NodeProxy{}
			Expect(k8s.Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np)).To(Succeed())
			return np.ResourceVersion
		}
		Eventually(summary(ctx)).Should(HaveField("Nodes", Equal(v1alpha1.NodeCounts{Total: 1, Stale: 1})))
		before := written()
		for range 3 { // each a second later
			controller.looks(ctx, "nodeproxy")
			Expect(written()).To(Equal(before))
		}
	})

	It("removes the Lease of a Node that is gone, and no other", func(ctx SpecContext) {
		switchOn(ctx)
		createNode(ctx, "n1")
		controller := startController()
		for _, n := range []string{"n1", "gone", "windows"} {
			renewLease(ctx, n, "1")
		}
		createNode(ctx, "windows", func(n *corev1.Node) { n.Labels[corev1.LabelOSStable] = "windows" })
		other := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: "agent.not-ours"}}
		Expect(k8s.Create(ctx, other)).To(Succeed())
		lease := func(name string) func() error {
			return func() error {
				return k8s.Get(ctx, client.ObjectKey{Namespace: leaseNamespace, Name: name}, &coordinationv1.Lease{})
			}
		}
		pass(85*time.Second, controller, func() {})
		controller.looksAtLeases()
		Expect(lease("agent.gone")()).To(Succeed())
		pass(10*time.Second, controller, func() {})
		Eventually(lease("agent.gone")).Should(WithTransform(apierrors.IsNotFound, BeTrue()))
		for _, name := range []string{"agent.n1", "agent.windows", "agent.not-ours"} {
			Expect(lease(name)()).To(Succeed(), name)
		}
	})
})
