package controllers_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// createServicePolicy creates a policy that disables the node ports of all Services in
// namespaces with the label team: shop, changed by edit.
func createServicePolicy(ctx context.Context, name string, edit ...func(*v1alpha1.ServiceProxyPolicySpec)) *v1alpha1.ServiceProxyPolicy {
	GinkgoHelper()
	p := &v1alpha1.ServiceProxyPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ServiceProxyPolicySpec{
			NamespaceSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}},
			Overrides:         v1alpha1.ServiceOverrides{NodePorts: new(v1alpha1.Disabled)},
		},
	}
	for _, e := range edit {
		e(&p.Spec)
	}
	Expect(k8s.Create(ctx, p)).To(Succeed())
	return p
}

// changeServicePolicy changes the spec of a policy.
func changeServicePolicy(ctx context.Context, name string, edit func(*v1alpha1.ServiceProxyPolicySpec)) {
	GinkgoHelper()
	Eventually(func() error {
		p := &v1alpha1.ServiceProxyPolicy{}
		if err := k8s.Get(ctx, client.ObjectKey{Name: name}, p); err != nil {
			return err
		}
		edit(&p.Spec)
		return k8s.Update(ctx, p)
	}).Should(Succeed())
}

// namespaceOf creates a namespace of a team.
func namespaceOf(ctx context.Context, team string) string {
	GinkgoHelper()
	name := newNamespace(ctx)
	label(ctx, name, team)
	return name
}

// label gives a namespace to a team.
func label(ctx context.Context, namespace, team string) {
	GinkgoHelper()
	ns := &corev1.Namespace{}
	Expect(k8s.Get(ctx, client.ObjectKey{Name: namespace}, ns)).To(Succeed())
	before := ns.DeepCopy()
	ns.Labels["team"] = team
	Expect(k8s.Patch(ctx, ns, client.MergeFrom(before))).To(Succeed())
}

// createNodePort creates a Service of type NodePort, changed by edit.
func createNodePort(ctx context.Context, namespace, name string, edit ...func(*corev1.Service)) *corev1.Service {
	GinkgoHelper()
	return createService(ctx, namespace, name, append([]func(*corev1.Service){func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
	}}, edit...)...)
}

// shape returns "policies: nodePort" of the first port of rules.
func shape(rules *v1alpha1.ServiceProxyRules) string {
	if len(rules.Spec.Ports) == 0 {
		return ""
	}
	open := "closed"
	if rules.Spec.Ports[0].NodePort != 0 {
		open = "open"
	}
	return fmt.Sprintf("%v: %s", rules.Spec.Policies, open)
}

func haveShape(want string) OmegaMatcher { return WithTransform(shape, Equal(want)) }

// servicePolicy reads a policy; for Eventually.
func servicePolicy(ctx context.Context, name string) func() (*v1alpha1.ServiceProxyPolicy, error) {
	return func() (*v1alpha1.ServiceProxyPolicy, error) {
		p := &v1alpha1.ServiceProxyPolicy{}
		err := k8s.Get(ctx, client.ObjectKey{Name: name}, p)
		return p, err
	}
}

// condition returns "status reason" of a condition about the present generation, and
// "none" when there is none.
func condition(of string) func(*v1alpha1.ServiceProxyPolicy) string {
	return func(p *v1alpha1.ServiceProxyPolicy) string {
		c := meta.FindStatusCondition(p.Status.Conditions, of)
		if c == nil || c.ObservedGeneration != p.Generation || p.Status.ObservedGeneration != p.Generation {
			return "none"
		}
		return fmt.Sprintf("%s %s", c.Status, c.Reason)
	}
}

func haveCondition(of, want string) OmegaMatcher { return WithTransform(condition(of), Equal(want)) }

// message returns that of a condition.
func message(of string) func(*v1alpha1.ServiceProxyPolicy) string {
	return func(p *v1alpha1.ServiceProxyPolicy) string {
		if c := meta.FindStatusCondition(p.Status.Conditions, of); c != nil {
			return c.Message
		}
		return ""
	}
}

// counted returns "services applied ineffective".
func counted(p *v1alpha1.ServiceProxyPolicy) string {
	return fmt.Sprintf("%d %d %d", p.Status.Services, p.Status.Applied, p.Status.Ineffective)
}

func haveCounted(want string) OmegaMatcher { return WithTransform(counted, Equal(want)) }

// policyEvents returns "type reason: note" of the events about a policy.
func policyEvents(ctx context.Context, p *v1alpha1.ServiceProxyPolicy) func() ([]string, error) {
	return func() ([]string, error) {
		var list eventsv1.EventList
		err := k8s.List(ctx, &list, client.InNamespace(metav1.NamespaceDefault))
		var out []string
		for _, e := range list.Items {
			if e.Regarding.UID == p.UID {
				out = append(out, e.Type+" "+e.Reason+": "+e.Note)
			}
		}
		return out, err
	}
}

var _ = Describe("ServiceProxyPolicy", func() {
	It("shapes the Services that it selects, and those only", func(ctx SpecContext) {
		ns, others := namespaceOf(ctx, "shop"), namespaceOf(ctx, "bank")
		switchOn(ctx)
		c := startController()
		createNodePort(ctx, ns, "cart")
		for i := range 20 {
			createNodePort(ctx, others, fmt.Sprintf("other-%d", i))
			Eventually(rulesOf(ctx, others, fmt.Sprintf("other-%d", i))).Should(haveShape("[]: open"))
		}
		Eventually(rulesOf(ctx, ns, "cart")).Should(haveShape("[]: open"))
		testClock.putForward(time.Minute) // it has not just changed
		c.looks(ctx, "service")
		before, renderings := versions(ctx), c.metric("nodeproxy_controller_render_seconds")

		By("adding it")
		p := createServicePolicy(ctx, "no-node-ports")
		Eventually(rulesOf(ctx, ns, "cart")).Should(haveShape("[no-node-ports]: closed"))
		rules, err := rulesOf(ctx, ns, "cart")()
		Expect(err).NotTo(HaveOccurred())
		Expect(rules.Spec.PortSummary).To(Equal("80/TCP"))
		Expect(rules.Annotations[v1alpha1.AnnotationOverrides]).To(MatchJSON(
			`{"overrides": {"nodePorts": "Disabled"}, "owners": {"nodePorts": "no-node-ports"}, "by": [{"name": "no-node-ports", "generation": 1}]}`))
		Eventually(servicePolicy(ctx, p.Name)).Should(And(
			haveCondition("Ready", "True Applied"), haveCondition("Accepted", "True Accepted"), haveCondition("Overridden", "False NotOverridden"),
			haveCondition("Ineffective", "False AllEffective"), haveCondition("Stalled", "none"), haveCounted("1 1 0")))
		Eventually(policyEvents(ctx, p)).Should(ContainElement("Normal Applied: Generation 1: 1 of 1 Service has the overrides of its policies."))
		c.looks(ctx, "service")
		after := versions(ctx)
		delete(before, "service "+ns+".cart")
		delete(after, "service "+ns+".cart")
		Expect(after).To(Equal(before))
		Expect(c.metric("nodeproxy_controller_render_seconds")-renderings).To(BeNumerically("<=", 3), "renderings of one Service")

		By("giving it to a new Service at once")
		createNodePort(ctx, ns, "new")
		Eventually(rulesOf(ctx, ns, "new")).Should(And(haveShape("[no-node-ports]: closed"), HaveField("Generation", BeEquivalentTo(1))))

		By("changing it")
		changeServicePolicy(ctx, p.Name, func(s *v1alpha1.ServiceProxyPolicySpec) {
			s.Overrides = v1alpha1.ServiceOverrides{InternalTrafficPolicy: new(v1alpha1.TrafficPolicyLocal)}
		})
		Eventually(rulesOf(ctx, ns, "cart")).Should(And(haveShape("[no-node-ports]: open"), HaveField("Spec.InternalTrafficPolicy", v1alpha1.TrafficPolicyLocal)))
		Eventually(servicePolicy(ctx, p.Name)).Should(And(haveCondition("Ready", "True Applied"), haveCounted("2 2 0")))

		By("deleting it")
		Expect(k8s.Delete(ctx, p)).To(Succeed())
		Eventually(rulesOf(ctx, ns, "cart")).Should(And(haveShape("[]: open"), HaveField("Spec.InternalTrafficPolicy", BeEmpty()),
			HaveField("Annotations", Not(HaveKey(v1alpha1.AnnotationOverrides)))))
		Eventually(func() float64 { return c.metric("nodeproxy_controller_service_policy_services") }).Should(BeZero())
	})

	It("follows the labels of Namespaces and of Services", func(ctx SpecContext) {
		ns := newNamespace(ctx)
		switchOn(ctx)
		startController()
		svc := createNodePort(ctx, ns, "cart")
		createServicePolicy(ctx, "p", func(s *v1alpha1.ServiceProxyPolicySpec) {
			s.ServiceSelector.MatchExpressions = []v1alpha1.LabelSelectorRequirement{{Key: "public", Operator: v1alpha1.SelectorDoesNotExist}}
		})
		Eventually(servicePolicy(ctx, "p")).Should(And(haveCondition("Ready", "True NothingSelected"), haveCounted("0 0 0")))
		Eventually(rulesOf(ctx, ns, "cart")).Should(haveShape("[]: open"))

		label(ctx, ns, "shop")
		Eventually(rulesOf(ctx, ns, "cart")).Should(haveShape("[p]: closed"))
		Eventually(servicePolicy(ctx, "p")).Should(And(haveCondition("Ready", "True Applied"), haveCounted("1 1 0")))

		svc.Labels = map[string]string{"public": ""}
		Expect(k8s.Update(ctx, svc)).To(Succeed())
		Eventually(rulesOf(ctx, ns, "cart")).Should(haveShape("[]: open"))
		svc.Labels = nil
		Expect(k8s.Update(ctx, svc)).To(Succeed())
		Eventually(rulesOf(ctx, ns, "cart")).Should(haveShape("[p]: closed"))

		label(ctx, ns, "bank")
		Eventually(rulesOf(ctx, ns, "cart")).Should(haveShape("[]: open"))
		Eventually(servicePolicy(ctx, "p")).Should(haveCondition("Ready", "True NothingSelected"))
	})

	It("reports fields that stronger policies set, and of those without effect", func(ctx SpecContext) {
		ns := namespaceOf(ctx, "shop")
		switchOn(ctx)
		startController()
		createNodePort(ctx, ns, "a")
		createNodePort(ctx, ns, "b")
		createService(ctx, ns, "lb", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer })
		createServicePolicy(ctx, "strong", func(s *v1alpha1.ServiceProxyPolicySpec) {
			s.Priority = new(int32(10))
			s.Overrides.NodePorts = new(v1alpha1.Enabled)
		})
		createServicePolicy(ctx, "weak", func(s *v1alpha1.ServiceProxyPolicySpec) {
			s.Overrides.ExternalTrafficPolicy = new(v1alpha1.TrafficPolicyLocal)
		})
		Eventually(rulesOf(ctx, ns, "a")).Should(And(haveShape("[strong weak]: open"), HaveField("Spec.ExternalTrafficPolicy", v1alpha1.TrafficPolicyLocal)))
		Eventually(rulesOf(ctx, ns, "lb")).Should(And(haveShape("[strong weak]: open"), HaveField("Spec.ExternalTrafficPolicy", BeEmpty())))
		Eventually(servicePolicy(ctx, "weak")).Should(And(
			haveCondition("Ready", "True Applied"), haveCounted("3 3 1"),
			haveCondition("Overridden", "True Overridden"),
			WithTransform(message("Overridden"), Equal("Policy strong (priority 10) sets spec.overrides.nodePorts for 3 Services such as "+ns+"/a.")),
			haveCondition("Ineffective", "True Ineffective"),
			WithTransform(message("Ineffective"), HavePrefix("Service "+ns+"/lb: spec.overrides.externalTrafficPolicy Local cannot apply to a Service of type LoadBalancer without healthCheckNodePort")),
		))
		p, err := servicePolicy(ctx, "weak")()
		Expect(err).NotTo(HaveOccurred())
		Expect(p.Status.Examples).To(ConsistOf(And(HaveField("Name", "lb"), HaveField("Namespace", ns), HaveField("Reason", "Ineffective"),
			HaveField("Message", HavePrefix("externalTrafficPolicy Local cannot apply to a Service of type LoadBalancer")))))
		Eventually(servicePolicy(ctx, "strong")).Should(And(haveCounted("3 3 0"), haveCondition("Overridden", "False NotOverridden"), haveCondition("Ineffective", "False AllEffective")))

		By("exchanging them")
		changeServicePolicy(ctx, "weak", func(s *v1alpha1.ServiceProxyPolicySpec) { s.Priority = new(int32(11)) })
		Eventually(rulesOf(ctx, ns, "a")).Should(haveShape("[weak]: closed"))
		Eventually(servicePolicy(ctx, "strong")).Should(haveCondition("Overridden", "True Overridden"))
	})
})
