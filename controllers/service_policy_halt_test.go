package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
)

// createNodePorts creates Services of type NodePort, and waits until all have rules and
// have been as they are for a while.
func createNodePorts(ctx context.Context, namespace string, count int) {
	GinkgoHelper()
	for i := range count {
		createService(ctx, namespace, fmt.Sprintf("s-%03d", i), func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeNodePort
			s.Labels = map[string]string{"number": fmt.Sprint(i)}
		})
	}
	Eventually(shapedIn(ctx, namespace, ""), "30s").Should(HaveLen(count))
	testClock.putForward(time.Minute)
}

// shapedIn returns the names of the Services of a namespace whose rules name a policy;
// of all, if it is empty.
func shapedIn(ctx context.Context, namespace, policy string) func() ([]string, error) {
	return func() ([]string, error) {
		var list v1alpha1.ServiceProxyRulesList
		err := k8s.List(ctx, &list)
		var out []string
		for i := range list.Items {
			of := objects.ServiceOfRules(&list.Items[i])
			if of.Namespace == namespace && (policy == "" || slices.Contains(list.Items[i].Spec.Policies, policy)) {
				out = append(out, of.Name)
			}
		}
		return out, err
	}
}

// reject has a node report that it rejects Services; none: that it rejects none.
func reject(ctx context.Context, node string, examples ...string) {
	GinkgoHelper()
	Eventually(func() error {
		rules := &v1alpha1.NodeProxyRules{}
		if err := k8s.Get(ctx, client.ObjectKey{Name: node}, rules); err != nil {
			return err
		}
		rules.Status.Rejected = &v1alpha1.RejectedServices{Count: int32(len(examples)), Examples: examples} //nolint:gosec // few
		return k8s.Status().Update(ctx, rules)
	}).Should(Succeed())
}

// rejectOne waits for the first Services to be shaped by a policy, and has a node reject
// one of them.
func rejectOne(ctx context.Context, namespace, policy, node string) (rejected string) {
	GinkgoHelper()
	Eventually(shapedIn(ctx, namespace, policy)).WithPolling(time.Millisecond).Should(Not(BeEmpty()))
	names, err := shapedIn(ctx, namespace, policy)()
	Expect(err).NotTo(HaveOccurred())
	reject(ctx, node, namespace+"/"+names[0]+": IPv4: no space left on device")
	return names[0]
}

var _ = Describe("A change of a ServiceProxyPolicy", func() {
	It("goes to at most 50 Services in a second", func(ctx SpecContext) {
		const count = 220
		ns := namespaceOf(ctx, "shop")
		switchOn(ctx)
		startController()
		createNodePorts(ctx, ns, count)
		w, err := k8s.Watch(ctx, &v1alpha1.ServiceProxyRulesList{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(w.Stop)
		start := testClock.Now()
		createServicePolicy(ctx, "p")
		// What comes late by the watch was written the earlier: that errs on the safe side.
		arrived, deadline := 0, time.NewTimer(30*time.Second)
		defer deadline.Stop()
		for arrived < count {
			select {
			case e := <-w.ResultChan():
				rules, ok := e.Object.(*v1alpha1.ServiceProxyRules)
				if !ok || e.Type != watch.Modified || len(rules.Spec.Policies) == 0 || objects.ServiceOfRules(rules).Namespace != ns {
					continue
				}
				arrived++
				Expect(arrived).To(BeNumerically("<=", 1+int(testClock.Since(start)/(20*time.Millisecond))), "Services in %s", testClock.Since(start))
			case <-deadline.C:
				Fail(fmt.Sprintf("only %d of %d Services were given the change", arrived, count))
			}
		}
		Expect(testClock.Since(start)).To(BeNumerically("<", 20*time.Second))
		Eventually(servicePolicy(ctx, "p")).Should(And(haveCondition("Ready", "True Applied"), haveCounted(fmt.Sprintf("%d %d 0", count, count))))
		p, err := servicePolicy(ctx, "p")()
		Expect(err).NotTo(HaveOccurred())
		Eventually(policyEvents(ctx, p)).Should(ConsistOf(
			fmt.Sprintf("Normal Progressing: Generation 1: A change is being applied to the %d Services that the policy selects.", count),
			fmt.Sprintf("Normal Applied: Generation 1: %d of %d Services have the overrides of their policies.", count, count),
		))
	})

	It("halts when a node rejects what it makes of a Service, and continues when none does", func(ctx SpecContext) {
		const count = 100
		ns := namespaceOf(ctx, "shop")
		switchOn(ctx)
		c := startController()
		createNode(ctx, "n1")
		createNodePorts(ctx, ns, count)
		c.looksAt(ctx, "servicepolicy", func() { reject(ctx, "n1", ns+"/s-099: it was so before") }, "/cluster")
		createServicePolicy(ctx, "p")
		rejected := rejectOne(ctx, ns, "p", "n1")
		Eventually(servicePolicy(ctx, "p")).Should(And(
			haveCondition("Ready", "False RolloutHalted"), haveCondition("Stalled", "True RolloutHalted"),
			WithTransform(message("Ready"), HavePrefix("Service "+ns+"/"+rejected+", as shaped by this policy: node n1 rejects it: IPv4: no space left on device. Correct the policy or fix the node; until then, ")),
			HaveField("Status.Examples", ConsistOf(v1alpha1.ServiceExample{
				Namespace: ns, Name: rejected, Reason: "Rejected", Message: "node n1 rejects it: IPv4: no space left on device",
			})),
		))
		shaped, err := shapedIn(ctx, ns, "p")()
		Expect(err).NotTo(HaveOccurred())
		Expect(len(shaped)).To(BeNumerically("<", count))
		unshaped := unshapedOf(count, shaped)

		By("rendering what happens to a Service that is not shaped")
		slice := createSlice(ctx, ns, unshaped, unshaped, at("10.1.0.1", "n1"))
		Eventually(rulesOf(ctx, ns, unshaped)).Should(And(WithTransform(addresses, ConsistOf("Ready 10.1.0.1:8080")), haveShape("[]: open")))

		By("another controller that finds the same")
		c.stop()
		before := versions(ctx)
		c = startController()
		setEndpoints(ctx, slice, at("10.1.0.2", "n1"))
		Eventually(rulesOf(ctx, ns, unshaped)).Should(WithTransform(addresses, ConsistOf("Ready 10.1.0.2:8080")))
		c.looks(ctx, "servicepolicy", "service")
		after := versions(ctx)
		for _, of := range []map[string]string{before, after} {
			delete(of, "service "+ns+"."+unshaped)
			delete(of, "node n1")
		}
		Expect(after).To(Equal(before))

		By("the node that does not reject it any more")
		reject(ctx, "n1")
		Eventually(shapedIn(ctx, ns, "p")).Should(HaveLen(count))
		Eventually(servicePolicy(ctx, "p")).Should(And(haveCondition("Ready", "True Applied"), haveCondition("Stalled", "none")))
		p, err := servicePolicy(ctx, "p")()
		Expect(err).NotTo(HaveOccurred())
		Eventually(policyEvents(ctx, p)).Should(ContainElements(HavePrefix("Warning RolloutHalted: Generation 1: Service "+ns+"/"+rejected), HavePrefix("Normal Applied: Generation 1: ")))
	})

	It("continues with another generation of the policy", func(ctx SpecContext) {
		const count = 60
		ns := namespaceOf(ctx, "shop")
		switchOn(ctx)
		controller := startController()
		createNode(ctx, "n1")
		createNodePorts(ctx, ns, count)
		createServicePolicy(ctx, "p")
		rejected := rejectOne(ctx, ns, "p", "n1")
		Eventually(servicePolicy(ctx, "p")).Should(haveCondition("Ready", "False RolloutHalted"))
		everyService := func() { // each is looked at again where its Namespace has other labels
			GinkgoHelper()
			controller.looks(ctx, "servicepolicy", "service")
			var all []string
			for i := range count {
				all = append(all, fmt.Sprintf("%s/s-%03d", ns, i))
			}
			controller.looksAt(ctx, "service", func() { touchNamespace(ctx, ns) }, all...)
		}
		everyService() // it may have been under way to some when the change stopped
		shaped, err := shapedIn(ctx, ns, "p")()
		Expect(err).NotTo(HaveOccurred())
		Expect(len(shaped)).To(BeNumerically("<", count))
		testClock.putForward(time.Minute)
		everyService()
		Expect(shapedIn(ctx, ns, "p")()).To(Equal(shaped))

		By("a policy that does not concern the one that is stopped")
		createServicePolicy(ctx, "other", func(s *v1alpha1.ServiceProxyPolicySpec) {
			s.ServiceSelector.MatchLabels = map[string]string{"number": numberOf(unshapedOf(count, shaped))}
			s.Overrides = v1alpha1.ServiceOverrides{IPVSScheduler: new("sh")}
		})
		Eventually(servicePolicy(ctx, "other")).Should(haveCondition("Ready", "False Progressing"))
		Eventually(servicePolicy(ctx, "other")).Should(WithTransform(message("Ready"), Equal(
			"0 of 1 Service has the overrides of its policies; 1 retains its overrides because the change of policy p has halted.")))

		By("leaving out the Service that is rejected")
		changeServicePolicy(ctx, "p", func(s *v1alpha1.ServiceProxyPolicySpec) {
			s.ServiceSelector.MatchExpressions = []v1alpha1.LabelSelectorRequirement{{Key: "number", Operator: v1alpha1.SelectorNotIn, Values: []string{numberOf(rejected)}}}
		})
		// Nodes still reject it: a change that has not helped is responsible, too.
		Eventually(rulesOf(ctx, ns, rejected)).Should(haveShape("[]: open"))
		reject(ctx, "n1")
		Eventually(shapedIn(ctx, ns, "p")).Should(HaveLen(count - 1))
		Eventually(servicePolicy(ctx, "other")).Should(haveCondition("Ready", "True Applied"))
	})

	It("waits in the namespace of a Service that itself has changed when a node rejects it, and only there", func(ctx SpecContext) {
		const count = 60
		tenant, others := namespaceOf(ctx, "tenants"), namespaceOf(ctx, "shop")
		switchOn(ctx)
		c := startController()
		createNode(ctx, "n1")
		createNodePorts(ctx, tenant, 3)
		createNodePorts(ctx, others, count)
		changed := func(namespace, name string) {
			GinkgoHelper()
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			edit(ctx, svc, func() { svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
			Eventually(rulesOf(ctx, namespace, name)).Should(HaveField("Annotations", HaveKeyWithValue(v1alpha1.AnnotationOverrides, ContainSubstring(`"changed":true`))))
		}
		createServicePolicy(ctx, "p", func(s *v1alpha1.ServiceProxyPolicySpec) {
			s.NamespaceSelector = v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelSelectorRequirement{
				{Key: "team", Operator: v1alpha1.SelectorIn, Values: []string{"tenants", "shop"}}}}
			s.ServiceSelector.MatchExpressions = []v1alpha1.LabelSelectorRequirement{{Key: "number", Operator: v1alpha1.SelectorIn, Values: []string{"0"}}}
		})
		Eventually(servicePolicy(ctx, "p")).Should(And(haveCondition("Ready", "True Applied"), haveCounted("2 2 0")))
		changed(tenant, "s-000")
		reject(ctx, "n1", tenant+"/s-000: IPv4: line 3 failed")
		Eventually(servicePolicy(ctx, "p")).Should(And(haveCondition("Ready", "True Applied"), haveCondition("Stalled", "none"),
			WithTransform(message("Ready"), Equal("Service "+tenant+"/s-000 itself has changed, and node n1 rejects it: IPv4: line 3 failed; correct the Service."))))

		By("labels by which the policy, in the same generation, selects more")
		for _, namespace := range []string{tenant, others} {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "s-001"}}
			edit(ctx, svc, func() { svc.Labels["number"] = "0" })
		}
		Eventually(shapedIn(ctx, others, "p")).Should(ConsistOf("s-000", "s-001"))
		Eventually(servicePolicy(ctx, "p")).Should(And(haveCondition("Ready", "False Progressing"), WithTransform(message("Ready"),
			HavePrefix("3 of 4 Services have the overrides of their policies; 1 retains its overrides because the change of policy p waits in namespace "+tenant))))
		Expect(shapedIn(ctx, tenant, "p")()).To(ConsistOf("s-000"))

		By("another controller that finds the same")
		c.stop()
		c = startController()
		c.looks(ctx, "servicepolicy", "service")
		Expect(shapedIn(ctx, tenant, "p")()).To(ConsistOf("s-000"))

		By("another namespace in which Services are rejected")
		changed(others, "s-000")
		reject(ctx, "n1", tenant+"/s-000: IPv4: line 3 failed", others+"/s-000: IPv4: line 3 failed")
		Eventually(servicePolicy(ctx, "p")).Should(And(haveCondition("Ready", "False Progressing"), WithTransform(message("Ready"), SatisfyAll(
			ContainSubstring("waits in namespace"), ContainSubstring(tenant), ContainSubstring(others)))), "their owner halts no other namespace")

		By("no node that rejects any of them")
		reject(ctx, "n1")
		Eventually(shapedIn(ctx, tenant, "p")).Should(ConsistOf("s-000", "s-001"))
		Eventually(servicePolicy(ctx, "p")).Should(haveCondition("Ready", "True Applied"))
	})

	It("continues elsewhere if it came to a Service that had just changed itself", func(ctx SpecContext) {
		tenant, others := namespaceOf(ctx, "shop"), namespaceOf(ctx, "shop")
		switchOn(ctx)
		startController()
		createNode(ctx, "n1")
		createNodePorts(ctx, others, 60)
		createNodePort(ctx, tenant, "late") // less than a minute ago
		Eventually(rulesOf(ctx, tenant, "late")).Should(haveShape("[]: open"))
		createServicePolicy(ctx, "p")
		Eventually(rulesOf(ctx, tenant, "late")).Should(haveShape("[p]: closed"))
		reject(ctx, "n1", tenant+"/late: IPv4: line 3 failed")
		Eventually(shapedIn(ctx, others, "p")).Should(HaveLen(60))
		Eventually(servicePolicy(ctx, "p")).Should(haveCondition("Ready", "True Applied"))
	})

	It("is not halted by a node that is gone, nor by Services that were rejected before", func(ctx SpecContext) {
		ns := namespaceOf(ctx, "shop")
		switchOn(ctx)
		c := startController()
		node := createNode(ctx, "n1")
		createNode(ctx, "n2")
		createNodePorts(ctx, ns, 5)
		// A controller that learned of the policy first would take the rejection for its effect.
		c.looksAt(ctx, "servicepolicy", func() { reject(ctx, "n2", ns+"/s-000: it was so before") }, "/cluster")
		createServicePolicy(ctx, "p")
		Eventually(shapedIn(ctx, ns, "p")).Should(HaveLen(5))
		Eventually(servicePolicy(ctx, "p")).Should(haveCondition("Ready", "True Applied"))

		reject(ctx, "n1", ns+"/s-001: no room")
		Eventually(servicePolicy(ctx, "p")).Should(And(haveCondition("Ready", "False RolloutHalted"),
			WithTransform(message("Ready"), Not(ContainSubstring("retain their overrides")))), "all have it already")
		Expect(k8s.Delete(ctx, node)).To(Succeed())
		Eventually(servicePolicy(ctx, "p")).Should(haveCondition("Ready", "True Applied"))
	})
})

// touchNamespace gives a Namespace a label that no policy selects by.
func touchNamespace(ctx context.Context, name string) {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	edit(ctx, namespace, func() { namespace.Labels["touched"] = fmt.Sprint(time.Now().UnixNano()) })
}

// unshapedOf returns the last of count Services that is not among those shaped.
func unshapedOf(count int, shaped []string) string {
	GinkgoHelper()
	for i := count - 1; i >= 0; i-- {
		if name := fmt.Sprintf("s-%03d", i); !slices.Contains(shaped, name) {
			return name
		}
	}
	Fail("all Services are shaped")
	return ""
}

// numberOf returns the label number of a Service of createNodePorts.
func numberOf(name string) string {
	var n int
	_, err := fmt.Sscanf(name, "s-%d", &n)
	Expect(err).NotTo(HaveOccurred())
	return fmt.Sprint(n)
}
