package apitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// errNoIPVS is the error of a data plane on a kernel without IPVS.
var errNoIPVS = fmt.Errorf("%w: the kernel has no IPVS: load the module ip_vs (modprobe ip_vs) on the node", dataplane.ErrUnsupported)

// service makes the ServiceProxyRules of a Service with one port.
func service(ctx context.Context, name, clusterIP string, endpoints ...string) *v1alpha1.ServiceProxyRules {
	GinkgoHelper()
	object := &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "shop." + name}}
	object.Spec = v1alpha1.ServiceProxyRulesSpec{
		FormatVersion: 1, ServiceCreated: metav1.Now(), ClusterIPs: []string{clusterIP},
		Ports: []v1alpha1.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}},
	}
	if len(endpoints) > 0 {
		object.Spec.Ports[0].Endpoints = []v1alpha1.EndpointGroup{{State: v1alpha1.EndpointReady, Addresses: endpoints}}
	}
	Expect(api.Create(ctx, object)).To(Succeed())
	DeferCleanup(func(ctx context.Context) {
		Expect(client.IgnoreNotFound(api.Delete(ctx, object))).To(Succeed())
	})
	return object
}

// inventory sets the NodeProxy's inventory so that exactly these Services must exist.
func inventory(ctx context.Context, names ...string) *v1alpha1.NodeProxy {
	GinkgoHelper()
	object := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	if err := api.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		Expect(api.Create(ctx, object)).To(Succeed())
		DeferCleanup(func(ctx context.Context) {
			Expect(client.IgnoreNotFound(api.Delete(ctx, object))).To(Succeed())
		})
	}
	var sum uint64
	for _, name := range names {
		sum += v1alpha1.NameHash("shop." + name)
	}
	object.Status.Inventory = &v1alpha1.Inventory{Services: int32(len(names)), Hash: v1alpha1.FormatInventoryHash(sum)}
	Expect(api.Status().Update(ctx, object)).To(Succeed())
	return object
}

var _ = Describe("an agent", func() {
	It("programs what it is given and reports it", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080", "10.244.2.6:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.createRules(ctx, func(s *v1alpha1.NodeProxyRulesSpec) {
			s.LocalEndpoints = []v1alpha1.ServiceLocalEndpoints{{Namespace: "shop", Name: "cart",
				Ports: []v1alpha1.PortLocalEndpoints{{Name: "http", Protocol: "TCP", Endpoints: []string{"10.244.1.5:8080"}}}}}
		})
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		Expect(n.kernel.Services()).To(Equal([]string{"shop/cart"}))

		By("writing every count at once with the condition")
		stored := n.rules(ctx)
		s := stored.Status
		Expect(n.condition(ctx, v1alpha1.ConditionAccepted)()).To(Equal("True/Accepted"))
		Expect(s.ObservedGeneration).To(Equal(stored.Generation))
		Expect(s.SettingsRevision).To(Equal("7d1f0a9c"))
		Expect(s.Mode).To(Equal(v1alpha1.ModeIPTables))
		Expect(s.Families).To(Equal([]string{"IPv4"}))
		Expect(s.AppliedResourceVersion).NotTo(BeEmpty())
		Expect([]int32{s.Services, s.Endpoints, s.LocalEndpoints, s.Retained}).To(Equal([]int32{1, 2, 1, 0}))
		Expect(s.Rejected.Count).To(BeZero())
		Expect(s.Kernel.Chains).To(BeEquivalentTo(1))
		Expect(s.Kernel.VerifiedTime.IsZero()).To(BeFalse())
		Expect(s.LastSync.Kind).To(Equal(v1alpha1.SyncFull))
		Expect(s.Difference.Count).To(BeZero())
		Expect(s.Agent.Version).To(Equal("v0.1.0"))
		Expect(s.Agent.Kernel).To(Equal("6.18.0"))
		Expect(s.Agent.IPTables).To(Equal("1.8.9 (nf_tables)"))
		Expect(s.Agent.FormatVersions).To(Equal(v1alpha1.FormatVersions()))
		Expect(s.Conntrack).To(BeNil())

		By("following a change of local endpoints within seconds")
		n.editRules(ctx, func(s *v1alpha1.NodeProxyRulesSpec) { s.LocalEndpoints = nil })
		Eventually(func() int32 { return n.rules(ctx).Status.LocalEndpoints }, "7s").Should(BeZero())
		Expect(n.rules(ctx).Status.ObservedGeneration).To(Equal(stored.Generation + 1))
	})

	It("applies nothing before its own object exists, and then at once", func(ctx SpecContext) {
		cart := service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		n := newNode().start()
		n.knows(cart)
		n.knowsNone("nodeproxyrules")
		n.decides(ctx)
		Expect(n.kernel.Writes()).To(BeZero())
		Expect(n.logged()).To(ContainSubstring("There is no NodeProxyRules for this node; nothing is programmed"))
		n.createRules(ctx, nil)
		Eventually(n.kernel.Services).Should(Equal([]string{"shop/cart"}))
		service(ctx, "pay", "10.96.0.8")
		Eventually(n.kernel.Services).Should(Equal([]string{"shop/cart", "shop/pay"}))
	})

	It("retains what vanishes, removes what is released", func(ctx SpecContext) {
		cart, pay := service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080"), service(ctx, "pay", "10.96.0.8")
		inventory(ctx, "cart", "pay")
		n := newNode()
		n.createRules(ctx, nil)
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))

		By("keeping the rules of an object that is deleted without being released")
		writes := n.kernel.Writes()
		Expect(api.Delete(ctx, cart)).To(Succeed())
		n.knowsEnd(cart.Name)
		n.observed(ctx)
		Expect(n.kernel.Services()).To(Equal([]string{"shop/cart", "shop/pay"}))
		Expect(n.kernel.Writes()).To(Equal(writes), "they were not away for a moment either")

		By("taking the object up again when it returns")
		service(ctx, "cart", "10.96.0.7", "10.244.1.9:8080")
		Eventually(func() string { return n.kernel.Service("shop", "cart").Ports[0].Cluster[0].String() }).Should(Equal("10.244.1.9:8080"))

		By("removing what is released at once, before and after the deletion")
		pay.Spec.Released = true
		Expect(api.Update(ctx, pay)).To(Succeed())
		Eventually(n.kernel.Services).Should(Equal([]string{"shop/cart"}))
		Expect(api.Delete(ctx, pay)).To(Succeed())
		n.knowsEnd(pay.Name)
		n.knows(inventory(ctx, "cart"))
		n.observed(ctx)
		Expect(n.kernel.Services()).To(Equal([]string{"shop/cart"}))
	})

	It("ends a retained Service when the inventory agrees", func(ctx SpecContext) {
		cart := service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		service(ctx, "pay", "10.96.0.8")
		inventory(ctx, "cart", "pay")
		n := newNode()
		n.createRules(ctx, nil)
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		Expect(api.Delete(ctx, cart)).To(Succeed())
		n.knowsEnd(cart.Name)
		n.observed(ctx)
		Expect(n.kernel.Services()).To(HaveLen(2))
		inventory(ctx, "pay")
		Eventually(n.kernel.Services).Should(Equal([]string{"shop/pay"}))
	})

	It("removes leftovers only once list and inventory agree", func(ctx SpecContext) {
		cart := service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		first := newNode()
		first.createRules(ctx, nil)
		service(ctx, "old", "10.96.0.9")
		first.start()
		Eventually(first.kernel.Services).Should(HaveLen(2))
		first.stop()
		Expect(api.Delete(ctx, &v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "shop.old"}})).To(Succeed())

		first.start() // the same kernel, an agent without memory
		first.knows(cart)
		first.knowsNone("nodeproxies")
		first.observed(ctx)
		Expect(first.kernel.Services()).To(HaveLen(2))
		inventory(ctx, "cart")
		Eventually(first.kernel.Services).Should(Equal([]string{"shop/cart"}))
	})

	It("reports Retained 10 seconds after the NodeProxy is deleted, and ends it", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.createRules(ctx, nil)
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		versions, deleted := n.versions(ctx), time.Now()
		Expect(api.Delete(ctx, &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}})).To(Succeed())
		for _, v := range versions(func(v *v1alpha1.NodeProxyRules) bool {
			return conditionOf(v, v1alpha1.ConditionProgrammed) == "True/Retained"
		}) {
			Expect(conditionOf(v, v1alpha1.ConditionProgrammed)).To(HavePrefix("True/"))
		}
		Expect(time.Since(deleted)).To(BeNumerically(">=", 10*time.Second))
		Expect(n.message(ctx, v1alpha1.ConditionProgrammed)).To(ContainSubstring(`no NodeProxy "cluster"`))
		Expect(n.kernel.Services()).To(Equal([]string{"shop/cart"}))
		inventory(ctx, "cart")
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
	})

	It("retains everything when its own object is deleted", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.createRules(ctx, func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Sync.VerifyIntervalSeconds = new(int32(5)) })
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		Expect(api.Delete(ctx, n.rules(ctx))).To(Succeed())
		Eventually(n.logged).Should(ContainSubstring("does not exist; the last known one stays applied"))

		By("still repairing and still following Services")
		n.kernel.Remove("shop", "cart")
		Eventually(n.kernel.Services).Should(Equal([]string{"shop/cart"}))
		service(ctx, "pay", "10.96.0.8")
		Eventually(n.kernel.Services).Should(Equal([]string{"shop/cart", "shop/pay"}))

		n.createRules(ctx, nil)
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(HavePrefix("True/"))
	})

	It("writes nothing while another proxy is active, and takes over when it stops", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.other.answer("ipvs")
		n.createRules(ctx, nil)
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("False/ConflictingProxy"))
		Expect(n.condition(ctx, v1alpha1.ConditionConflictingProxy)()).To(Equal("True/ConflictingProxy"))
		Expect(n.message(ctx, v1alpha1.ConditionProgrammed)).To(And(ContainSubstring(`"ipvs"`), ContainSubstring("Stop it")))
		n.decides(ctx)
		Expect(n.kernel.Writes()).To(BeZero())
		n.other.close()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		Expect(n.kernel.Services()).To(Equal([]string{"shop/cart"}))
		Expect(n.condition(ctx, v1alpha1.ConditionConflictingProxy)()).To(HavePrefix("False/"))
	})

	It("reports differences with Audit, writes nothing, and repairs with Enforce", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.createRules(ctx, func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Enforcement = new(v1alpha1.Audit) })
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("False/AuditDiffers"))
		Expect(n.rules(ctx).Status).To(SatisfyAll(
			HaveField("Difference.Count", BeEquivalentTo(1)), HaveField("Difference.Examples", ConsistOf("Service shop/cart differs")),
			HaveField("SettingsRevision", "7d1f0a9c"), HaveField("Services", BeEquivalentTo(1))))
		Expect(n.message(ctx, v1alpha1.ConditionProgrammed)).To(ContainSubstring("no program maintains the rules"))
		n.other.answer("iptables")
		Eventually(func() string { return n.message(ctx, v1alpha1.ConditionProgrammed) }).Should(ContainSubstring("another proxy runs on this node"))
		Expect(n.condition(ctx, v1alpha1.ConditionProgrammed)()).To(Equal("False/AuditDiffers"))
		Expect(n.condition(ctx, v1alpha1.ConditionConflictingProxy)()).To(Equal("absent"))
		Expect(n.kernel.Writes()).To(BeZero())

		n.other.close()
		n.editRules(ctx, func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Enforcement = new(v1alpha1.Enforce) })
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		Expect(n.kernel.Services()).To(Equal([]string{"shop/cart"}))
		n.editRules(ctx, func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Enforcement = new(v1alpha1.Audit) })
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/AuditInSync"))
		Expect(n.rules(ctx).Status.Difference.Count).To(BeZero())
	})

	DescribeTable("does not accept what it cannot do, and leaves the rules", func(ctx SpecContext, edit func(*v1alpha1.NodeProxyRulesSpec), reason, named string) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.kernel.LackMode(v1alpha1.ModeIPVS, errNoIPVS)
		n.createRules(ctx, nil)
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		n.editRules(ctx, edit)
		Eventually(n.condition(ctx, v1alpha1.ConditionAccepted)).Should(Equal("False/" + reason))
		Expect(n.condition(ctx, v1alpha1.ConditionProgrammed)()).To(Equal("False/Failed"))
		Expect(n.message(ctx, v1alpha1.ConditionAccepted)).To(And(ContainSubstring(named), ContainSubstring("stay as they are")))
		n.knows(service(ctx, "pay", "10.96.0.8"))
		n.observed(ctx)
		Expect(n.kernel.Services()).To(Equal([]string{"shop/cart"}))
		Expect(n.rules(ctx).Status.SettingsRevision).To(Equal("7d1f0a9c"))

		n.editRules(ctx, func(s *v1alpha1.NodeProxyRulesSpec) {
			s.FormatVersion, s.Settings, s.SettingsRevision = 1, *v1alpha1.CompleteSettings(nil), "0"
		})
		Eventually(n.condition(ctx, v1alpha1.ConditionAccepted)).Should(Equal("True/Accepted"))
		Eventually(n.kernel.Services).Should(Equal([]string{"shop/cart", "shop/pay"}))
		Eventually(func() string { return n.rules(ctx).Status.SettingsRevision }).Should(Equal("0"))
	},
		Entry("a mode that the node cannot run", func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Mode = new(v1alpha1.ModeIPVS) }, "Unsupported", "modprobe ip_vs"),
		Entry("invalid settings", func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Masquerade.Bit = new(int32(32)) }, "Invalid", "spec.settings.masquerade.bit"),
		Entry("an unknown format", func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 3 }, "UnknownFormat", "spec.formatVersion 3"),
	)

	It("changes the mode, and falls back to another one where it may", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.createRules(ctx, nil)
		n.start()
		mode := func() string { return string(n.rules(ctx).Status.Mode) }
		asking := func(mode v1alpha1.ProxyMode, scheduler string) {
			n.editRules(ctx, func(s *v1alpha1.NodeProxyRulesSpec) {
				s.Settings.Mode, s.Settings.Fallback = &mode, new(v1alpha1.FallbackIPTables)
				s.Settings.IPVS = &v1alpha1.IPVSSettings{Scheduler: &scheduler}
				s.Settings.Sync = &v1alpha1.SyncSettings{VerifyIntervalSeconds: new(int32(5))}
			})
		}
		Eventually(mode).Should(Equal("IPTables"))
		asking(v1alpha1.ModeIPVS, "rr")
		Eventually(mode).Should(Equal("IPVS"))
		Expect(n.kernel.Mode()).To(Equal(v1alpha1.ModeIPVS))
		Expect(n.condition(ctx, v1alpha1.ConditionModeFallback)()).To(Equal("absent"))

		n.kernel.LackMode(v1alpha1.ModeIPVS, errNoIPVS)
		asking(v1alpha1.ModeIPVS, "mh")
		Eventually(mode).Should(Equal("IPTables"))
		Expect(n.condition(ctx, v1alpha1.ConditionModeFallback)()).To(Equal("True/KernelLacksMode"))
		Expect(n.message(ctx, v1alpha1.ConditionModeFallback)).To(ContainSubstring("modprobe ip_vs"))
		Expect(n.condition(ctx, v1alpha1.ConditionAccepted)()).To(Equal("True/Accepted"))

		n.kernel.LackMode(v1alpha1.ModeIPVS, nil) // an administrator has loaded it
		Eventually(mode).Should(Equal("IPVS"))
		Expect(n.condition(ctx, v1alpha1.ConditionModeFallback)()).To(Equal("False/NoFallback"))
		asking(v1alpha1.ModeIPTables, "rr")
		Eventually(mode).Should(Equal("IPTables"))
	})

	It("names a Service in a format it does not know and retains its rules", func(ctx SpecContext) {
		cart := service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.createRules(ctx, nil)
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		cart.Spec.FormatVersion = 9
		cart.Spec.ClusterIPs = []string{"10.96.0.99"}
		Expect(api.Update(ctx, cart)).To(Succeed())
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/SomeServicesRejected"))
		Expect(n.rules(ctx).Status.Rejected.Examples).To(ConsistOf(HavePrefix("shop/cart: spec.formatVersion 9")))
		Expect(n.kernel.Service("shop", "cart").ClusterIP.String()).To(Equal("10.96.0.7"))
	})

	It("reports what the kernel rejects and lacks, and recovers", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.kernel.Lack("iptables is not installed: apt-get install iptables")
		n.createRules(ctx, nil)
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionAccepted)).Should(Equal("False/Unsupported"))
		Expect(n.condition(ctx, v1alpha1.ConditionProgrammed)()).To(Equal("False/Failed"))
		Expect(n.message(ctx, v1alpha1.ConditionAccepted)).To(ContainSubstring("apt-get install iptables"))
		n.kernel.Lack("")
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))

		n.kernel.Fail(errors.New("another process holds the lock"))
		service(ctx, "pay", "10.96.0.8")
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("False/Failed"))
		Expect(n.message(ctx, v1alpha1.ConditionProgrammed)).To(ContainSubstring("another process holds the lock"))
		Expect(n.condition(ctx, v1alpha1.ConditionAccepted)()).To(Equal("True/Accepted"))
		n.kernel.Fail(nil)
		n.kernel.Reject("shop", "bad", "line 3 failed")
		service(ctx, "bad", "10.96.0.9")
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/SomeServicesRejected"))
		Expect(n.rules(ctx).Status.Rejected.Examples).To(Equal([]string{"shop/bad: IPv4: line 3 failed"}))
	})

	It("rewrites what another writer puts into its status", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.createRules(ctx, nil)
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))

		By("editing a count")
		patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"services":77}}`))
		Expect(api.Status().Patch(ctx, n.rules(ctx), patch, client.FieldOwner("kubectl-edit"))).To(Succeed())
		Expect(n.rules(ctx).Status.Services).To(Or(BeEquivalentTo(77), BeEquivalentTo(1)))
		Eventually(func() int32 { return n.rules(ctx).Status.Services }).Should(BeEquivalentTo(1))

		By("writing counts that the agent does not report")
		patch = client.RawPatch(types.MergePatchType, []byte(`{"status":{"drift":{"repairs":99},"conntrack":{"usagePercent":55}}}`))
		Expect(api.Status().Patch(ctx, n.rules(ctx), patch, client.FieldOwner("kubectl-edit"))).To(Succeed())
		Eventually(func() v1alpha1.NodeProxyRulesStatus { return n.rules(ctx).Status }).Should(SatisfyAll(
			HaveField("Drift.Repairs", BeEquivalentTo(0)), HaveField("Conntrack", BeNil()), HaveField("Services", BeEquivalentTo(1))))

		By("editing a condition, as the controller does when it hears nothing")
		object := n.rules(ctx)
		for i := range object.Status.Conditions {
			if c := &object.Status.Conditions[i]; c.Type == v1alpha1.ConditionProgrammed {
				c.Status, c.Reason = metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding
			}
		}
		Expect(api.Status().Update(ctx, object)).To(Succeed())
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))

		By("leaving a condition of another type alone, without writing for ever")
		object = n.rules(ctx)
		object.Status.Conditions = append(object.Status.Conditions, metav1.Condition{
			Type: "Inspected", Status: metav1.ConditionTrue, Reason: "ByHand", LastTransitionTime: metav1.Now()})
		Expect(api.Status().Update(ctx, object)).To(Succeed())
		Eventually(n.condition(ctx, "Inspected")).Should(Equal("True/ByHand"))
		var settled string
		Eventually(func() bool {
			before := settled
			settled = n.rules(ctx).ResourceVersion
			return before == settled
		}, "10s", "3s").Should(BeTrue())
	})

	It("does not touch the status at a restart that changes nothing", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.createRules(ctx, nil)
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		n.stop()
		Expect(n.kernel.Services()).To(Equal([]string{"shop/cart"}), "stopping leaves all rules")
		versions, before := n.versions(ctx), n.rules(ctx).Status.Conditions
		n.start()
		for _, v := range versions(reports(n.observed(ctx))) {
			Expect(v.Status.Conditions).To(HaveLen(len(before)))
			for i := range before { // what observed has asked for
				v.Status.Conditions[i].ObservedGeneration = before[i].ObservedGeneration
			}
			Expect(v.Status.Conditions).To(Equal(before))
		}
	})

	It("gives a contested address to the older Service until that goes", func(ctx SpecContext) {
		older := service(ctx, "older", "10.96.0.7", "10.244.1.5:8080")
		younger := service(ctx, "younger", "10.96.0.8", "10.244.1.6:8080")
		older.Spec.ServiceCreated = metav1.NewTime(time.Now().Add(-time.Hour))
		for _, object := range []*v1alpha1.ServiceProxyRules{older, younger} {
			object.Spec.ExternalIPs = []string{"192.0.2.99"}
			Expect(api.Update(ctx, object)).To(Succeed())
		}
		n := newNode()
		n.createRules(ctx, nil)
		n.start()
		lost := func(name string) func() int {
			return func() int {
				svc := n.kernel.Service("shop", name)
				if svc == nil {
					return -1
				}
				return len(svc.Ports[0].Lost)
			}
		}
		Eventually(lost("younger")).Should(Equal(1))
		Expect(lost("older")()).To(BeZero())
		older.Spec.Released = true
		Expect(api.Update(ctx, older)).To(Succeed())
		Eventually(lost("younger")).Should(BeZero())
	})

	It("writes no count of local endpoints that did not change, and few bytes", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.createRules(ctx, nil)
		n.start()
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		versions := n.versions(ctx)
		service(ctx, "pay", "10.96.0.8", "10.244.1.7:8080")
		// The agent shows a count right before it decides whether to write the status.
		Eventually(n.metric(ctx, "nodeproxy_agent_services")).Should(BeEquivalentTo(2))
		Expect(versions(reports(n.observed(ctx)))).To(HaveLen(2), "the edit and the report on it, but no counts alone: they wait five minutes")
		text, err := json.Marshal(n.rules(ctx).Status)
		Expect(err).NotTo(HaveOccurred())
		Expect(len(text)).To(BeNumerically("<", 2000))
	})

	It("logs a remedy when the API does not let it in", func(ctx SpecContext) {
		stranger := rest.AnonymousClientConfig(config)
		n := newNode().startAt(clock.RealClock{}, stranger)
		Eventually(n.logged).Should(Or(ContainSubstring("credentials"), ContainSubstring("roles and their bindings")))
		Expect(n.logged()).To(ContainSubstring("rules in the kernel stay as they are"))
		Expect(n.kernel.Writes()).To(BeZero())
	})
})
