package controllers_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	. "github.com/onsi/gomega/gstruct"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers"
)

// withImage has the controller know an image for the agents.
func withImage(o *controllers.Options) { o.Agents.Image = "example.com/agent:v1" }

// switchOnManaged creates the NodeProxy with agents that the controller runs.
func switchOnManaged(ctx context.Context, edit ...func(*v1alpha1.NodeProxySpec)) {
	GinkgoHelper()
	managed := v1alpha1.AgentManaged
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	np.Spec.Agent = &v1alpha1.AgentSettings{Management: &managed}
	for _, e := range edit {
		e(&np.Spec)
	}
	Expect(k8s.Create(ctx, np)).To(Succeed())
}

// agentsOf reads the agents' DaemonSet; for Eventually.
func agentsOf(ctx context.Context) func() (*appsv1.DaemonSet, error) {
	return func() (*appsv1.DaemonSet, error) {
		d := &appsv1.DaemonSet{}
		err := k8s.Get(ctx, client.ObjectKey{Namespace: leaseNamespace, Name: "nodeproxy-agent"}, d)
		return d, err
	}
}

// image returns that of the agents.
func image(d *appsv1.DaemonSet) string { return d.Spec.Template.Spec.Containers[0].Image }

// change edits the agents' DaemonSet as a person does.
func change(ctx context.Context, edit func(*appsv1.DaemonSet)) {
	GinkgoHelper()
	Eventually(func() error {
		d, err := agentsOf(ctx)()
		if err != nil {
			return err
		}
		edit(d)
		return k8s.Update(ctx, d)
	}).Should(Succeed())
}

// reportPods writes the status of the DaemonSet as its controller does.
func reportPods(ctx context.Context, desired, updated, available int32) {
	GinkgoHelper()
	Eventually(func() error {
		d, err := agentsOf(ctx)()
		if err != nil {
			return err
		}
		d.Status.ObservedGeneration = d.Generation
		d.Status.DesiredNumberScheduled, d.Status.UpdatedNumberScheduled, d.Status.NumberAvailable = desired, updated, available
		return k8s.Status().Update(ctx, d)
	}).Should(Succeed())
}

// createAgentPod creates a pod of the DaemonSet, and writes its status as the
// kubelet does.
func createAgentPod(ctx context.Context, name, node string, status corev1.PodStatus) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: leaseNamespace, Name: name, Labels: map[string]string{"app.kubernetes.io/name": "nodeproxy-agent"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "agent", Image: "example.com/agent:v1"}}},
	}
	Expect(k8s.Create(ctx, pod)).To(Succeed())
	pod.Status = status
	Expect(k8s.Status().Update(ctx, pod)).To(Succeed())
	return pod
}

// deployed returns "status reason: message" of the condition AgentsDeployed.
func deployed(status v1alpha1.NodeProxyStatus) string {
	c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAgentsDeployed)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

var _ = Describe("AgentsReconciler", func() {
	It("creates the DaemonSet, follows NodeProxy and leaves it when that goes", func(ctx SpecContext) {
		switchOn(ctx)
		controller := startController(withImage)
		controller.firstLooks("agents")
		Expect(hasAgents(ctx, "nodeproxy-agent")).To(BeFalse()) // Unmanaged

		patchNodeProxy(ctx, `{"spec":{"agent":{"management":"Managed"}}}`)
		Eventually(agentsOf(ctx)).Should(SatisfyAll(WithTransform(image, Equal("example.com/agent:v1")), HaveField("OwnerReferences", BeEmpty())))
		Eventually(summary(ctx)).Should(WithTransform(deployed, HavePrefix("False AgentsUpdating: ")))
		reportPods(ctx, 1, 1, 1)
		Eventually(summary(ctx)).Should(WithTransform(deployed, Equal("True AgentsUpToDate: ")))

		By("another image and other settings")
		patchNodeProxy(ctx, `{"spec":{"agent":{"image":"example.com/agent:v2","logLevel":3,"nodeSelector":{"pool":"edge"}}}}`)
		Eventually(agentsOf(ctx)).Should(SatisfyAll(
			WithTransform(image, Equal("example.com/agent:v2")),
			HaveField("Spec.Template.Spec.NodeSelector", Equal(map[string]string{"kubernetes.io/os": "linux", "pool": "edge"})),
			HaveField("Spec.Template.Spec.Containers", ConsistOf(HaveField("Args", ContainElement("--v=3")))),
		))
		Eventually(summary(ctx)).Should(WithTransform(deployed, HavePrefix("False AgentsUpdating: ")))
		patchNodeProxy(ctx, `{"spec":{"agent":{"nodeSelector":null}}}`)
		Eventually(agentsOf(ctx)).Should(HaveField("Spec.Template.Spec.NodeSelector", Equal(map[string]string{"kubernetes.io/os": "linux"})))

		By("run by hand from now on: it stays, unmanaged")
		before, err := agentsOf(ctx)()
		Expect(err).NotTo(HaveOccurred())
		patchNodeProxy(ctx, `{"spec":{"agent":{"management":"Unmanaged"}}}`)
		Eventually(summary(ctx)).Should(WithTransform(deployed, BeEmpty()))
		change(ctx, func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Image = "example.com/agent:mine" })
		controller.looks(ctx, "agents")
		Expect(agentsOf(ctx)()).To(SatisfyAll(HaveField("UID", before.UID), WithTransform(image, Equal("example.com/agent:mine"))))

		By("managed again, then without NodeProxy")
		patchNodeProxy(ctx, `{"spec":{"agent":{"management":"Managed"}}}`)
		Eventually(agentsOf(ctx)).Should(WithTransform(image, Equal("example.com/agent:v2")))
		deleteNodeProxy(ctx)
		Eventually(nodeProxyGone(ctx)).Should(BeTrue())
		controller.looks(ctx, "agents")
		Expect(agentsOf(ctx)()).To(SatisfyAll(HaveField("UID", before.UID), HaveField("DeletionTimestamp", BeNil())))
		switchOnManaged(ctx)
		Eventually(agentsOf(ctx)).Should(SatisfyAll(HaveField("UID", before.UID), WithTransform(image, Equal("example.com/agent:v1"))))
	})

	It("restores its own fields, leaves others, and writes nothing else", func(ctx SpecContext) {
		switchOnManaged(ctx)
		controller := startController(withImage)
		Eventually(agentsOf(ctx)).ShouldNot(BeNil())

		pace := intstr.FromString("10%")
		change(ctx, func(d *appsv1.DaemonSet) {
			d.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &pace}
			d.Spec.Template.Annotations = map[string]string{"example.com/mine": "yes"}
			d.Spec.Template.Spec.Containers[0].Args = []string{"--v=9"}
			d.Spec.Template.Spec.HostNetwork = false
			d.Spec.Template.Spec.Containers[0].Env = append(d.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "MINE", Value: "yes"})
		})
		Eventually(agentsOf(ctx)).Should(SatisfyAll(
			HaveField("Spec.Template.Spec.HostNetwork", BeTrue()),
			HaveField("Spec.Template.Spec.Containers", ConsistOf(SatisfyAll(
				HaveField("Args", ContainElement("--v=0")), HaveField("Env", ContainElement(HaveField("Name", "MINE")))))),
			HaveField("Spec.UpdateStrategy.RollingUpdate.MaxUnavailable", PointTo(Equal(pace))),
			HaveField("Spec.Template.Annotations", HaveKeyWithValue("example.com/mine", "yes")),
		))

		By("a status, and a restart, which change nothing")
		before, err := agentsOf(ctx)()
		Expect(err).NotTo(HaveOccurred())
		writes := controller.metric("nodeproxy_controller_writes_total")
		reportPods(ctx, 2, 2, 2)
		Eventually(summary(ctx)).Should(WithTransform(deployed, HavePrefix("True ")))
		Eventually(func() float64 { return controller.metric("nodeproxy_controller_writes_total") }).Should(BeNumerically(">", writes)) // the summary's
		controller.stop()
		second := startController(withImage)
		Eventually(func() float64 { return second.metric("nodeproxy_controller_skipped_writes_total") }).Should(BeNumerically(">", 0))
		second.firstLooks("agents") // the first one applies, the other one finds nothing to do
		second.looks(ctx, "agents")
		Expect(agentsOf(ctx)()).To(SatisfyAll(HaveField("Generation", before.Generation), HaveField("UID", before.UID)))

		By("deleting it")
		Expect(k8s.Delete(ctx, before)).To(Succeed())
		Eventually(agentsOf(ctx)).Should(SatisfyAll(HaveField("UID", Not(Equal(before.UID))), HaveField("DeletionTimestamp", BeNil())))
	})

	It("reports that there is no image, and what the API server denies", func(ctx SpecContext) {
		switchOnManaged(ctx)
		startController()
		Eventually(summary(ctx)).Should(SatisfyAll(
			WithTransform(ready, SatisfyAll(HavePrefix("False NoAgentImage: "), ContainSubstring("spec.agent.image"), ContainSubstring("RELATED_IMAGE_AGENT"))),
			WithTransform(deployed, HavePrefix("False NoAgentImage: ")),
		))
		patchNodeProxy(ctx, `{"spec":{"agent":{"image":"example.com/agent:v3","stateDir":"/var/../lib"}}}`)
		Eventually(summary(ctx)).Should(WithTransform(ready, SatisfyAll(
			HavePrefix("False DaemonSetDenied: "), ContainSubstring("must not contain '..'"), ContainSubstring("hostPath"))))
		patchNodeProxy(ctx, `{"spec":{"agent":{"stateDir":null}}}`)
		Eventually(agentsOf(ctx)).Should(WithTransform(image, Equal("example.com/agent:v3")))
		Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("False NoNodes: ")))
	})

	It("reports why agents do not run", func(ctx SpecContext) {
		createNode(ctx, "n1")
		createNode(ctx, "n2")
		switchOnManaged(ctx)
		startController(withImage)
		for _, node := range []string{"n1", "n2"} {
			report(ctx, node, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")
		}
		reportPods(ctx, 2, 2, 2)
		Eventually(summary(ctx)).Should(WithTransform(ready, Equal("True AllProgrammed: ")))

		By("an update, which is nothing bad")
		reportPods(ctx, 2, 1, 1)
		Eventually(summary(ctx)).Should(WithTransform(deployed, Equal("False AgentsUpdating: The update of the agents has reached 1 of 2 nodes.")))
		Expect(summary(ctx)()).To(WithTransform(ready, Equal("True AllProgrammed: ")))

		By("an image that cannot be pulled, though all nodes are programmed")
		notReady := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}}
		pod := createAgentPod(ctx, "agent-x", "n2", corev1.PodStatus{Conditions: notReady, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "agent", Image: "example.com/agent:v1",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image"}},
		}}})
		want := "AgentPodsFailing: Pod nodeproxy-system/agent-x on node n2: image example.com/agent:v1 cannot be pulled: ImagePullBackOff: Back-off pulling image. The update of the agents has reached 1 of 2 nodes."
		Eventually(summary(ctx)).Should(SatisfyAll(WithTransform(ready, Equal("False "+want)), WithTransform(deployed, Equal("False "+want))))

		By("one that is not ready for long")
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		Expect(k8s.Status().Update(ctx, pod)).To(Succeed())
		Eventually(summary(ctx)).Should(WithTransform(ready, Equal("True AllProgrammed: ")))
		testClock.putForward(time.Minute)
		pod.Labels["touched"] = "yes" // to trigger a reconcile after the clock was put forward
		Expect(k8s.Update(ctx, pod)).To(Succeed())
		Eventually(summary(ctx)).Should(WithTransform(ready, HavePrefix("False AgentPodsNotReady: Pod nodeproxy-system/agent-x on node n2: it is running but has not been ready")))

		By("which the nodes' own problems take precedence over")
		report(ctx, "n2", metav1.ConditionFalse, v1alpha1.ReasonFailed, "iptables is not there")
		Eventually(summary(ctx)).Should(SatisfyAll(
			WithTransform(ready, Equal("False NodesNotProgrammed: Node n2: Failed: iptables is not there.")),
			WithTransform(deployed, HavePrefix("False AgentPodsNotReady: ")),
		))
	})
})
