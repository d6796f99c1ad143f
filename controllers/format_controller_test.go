package controllers_test

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers"
)

// reportFormats reports for a node's agent which versions of the format it knows.
func reportFormats(ctx context.Context, node string, versions ...int32) {
	GinkgoHelper()
	Eventually(func() error {
		rules, err := nodeRules(ctx, node)()
		if err != nil {
			return err
		}
		rules.Status.Agent = &v1alpha1.AgentReport{Version: "v0.1.0", FormatVersions: versions}
		return k8s.Status().Update(ctx, rules)
	}).Should(Succeed())
}

// formatVersions returns how many rendered objects there are of each version.
func formatVersions(ctx context.Context) func() (map[int32]int, error) {
	return func() (map[int32]int, error) {
		out := map[int32]int{}
		var services v1alpha1.ServiceProxyRulesList
		if err := k8s.List(ctx, &services); err != nil {
			return nil, err
		}
		for i := range services.Items {
			out[services.Items[i].Spec.FormatVersion]++
		}
		var nodes v1alpha1.NodeProxyRulesList
		err := k8s.List(ctx, &nodes)
		for i := range nodes.Items {
			out[nodes.Items[i].Spec.FormatVersion]++
		}
		return out, err
	}
}

var _ = Describe("negotiating the format version", func() {
	writing := func(versions ...int32) func(*controllers.Options) {
		return func(o *controllers.Options) { o.FormatVersions = versions }
	}

	It("is raised when every node's last report has it, and lowered at once", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		const objects = 5 + 3 // with the Service of the API server
		first := createService(ctx, ns, "svc-0")
		for i := range 3 {
			createService(ctx, ns, fmt.Sprintf("svc-%d", i+1))
		}
		switchOn(ctx)
		for _, n := range []string{"n1", "n2", "n3"} {
			createNode(ctx, n)
		}
		controller := startController(writing(1, 2))
		all := func(version int32) { // every object, and no other version
			GinkgoHelper()
			Eventually(formatVersions(ctx)).Should(Equal(map[int32]int{version: objects}))
		}
		all(2)
		reportFormats(ctx, "n1", 1)
		all(1)
		reportFormats(ctx, "n2", 1, 2)
		reportFormats(ctx, "n3", 1, 2)
		controller.looksAt(ctx, "format", func() { reportFormats(ctx, "n1", 1, 99) }, "/cluster")
		// What is rendered now is rendered in the version that was found.
		controller.looksAt(ctx, "service", func() { touch(ctx, first) }, ns+"/svc-0")
		controller.looks(ctx, "service", "node")
		Expect(formatVersions(ctx)()).To(Equal(map[int32]int{1: objects}))
		reportFormats(ctx, "n1", 1, 2)
		all(2)

		By("another controller, which writes nothing of it again")
		before := versions(ctx)
		controller.stop()
		controller = startController(writing(1, 2))
		controller.firstLooks("format", "service", "node", "rollout")
		controller.looks(ctx, "service", "node", "rollout")
		Expect(versions(ctx)).To(Equal(before))

		By("a node that joins with an older agent")
		createNode(ctx, "n4")
		Eventually(nodeRules(ctx, "n4")).Should(HaveField("Spec.FormatVersion", BeEquivalentTo(2)))
		reportFormats(ctx, "n4", 1)
		Eventually(formatVersions(ctx)).Should(Equal(map[int32]int{1: objects + 1}))

		By("a controller that writes the older one only")
		reportFormats(ctx, "n4", 1, 2)
		Eventually(formatVersions(ctx)).Should(Equal(map[int32]int{2: objects + 1}))
		controller.stop()
		startController(writing(1))
		Eventually(formatVersions(ctx)).Should(Equal(map[int32]int{1: objects + 1}))
	})
})
