package apitest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// leaseOf reads the Lease of a node's agent; for Eventually.
func leaseOf(ctx context.Context, n *node) func() (*coordinationv1.Lease, error) {
	return func() (*coordinationv1.Lease, error) {
		l := &coordinationv1.Lease{}
		err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "agent." + n.name}, l)
		return l, err
	}
}

// asAgent is a user with the permissions of the agents' roles and no others. The
// role for the namespace of the Leases is put where they live here.
func asAgent(ctx context.Context) *rest.Config {
	GinkgoHelper()
	const name = "nodeproxy-agent"
	user, err := environment.AddUser(envtest.User{Name: name}, config)
	Expect(err).NotTo(HaveOccurred())
	file, err := os.ReadFile("../../config/rbac/agent_role.yaml")
	Expect(err).NotTo(HaveOccurred())
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}
	create := func(objects ...client.Object) {
		for _, o := range objects {
			Expect(api.Create(ctx, o)).To(Succeed())
			DeferCleanup(func(ctx context.Context) { Expect(api.Delete(ctx, o)).To(Succeed()) })
		}
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(file), 4096)
	for {
		role := &rbacv1.ClusterRole{} // a Role has the same fields
		err := documents.Decode(role)
		if errors.Is(err, io.EOF) {
			break
		}
		Expect(err).NotTo(HaveOccurred())
		if role.Kind == "Role" {
			create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Rules: role.Rules},
				&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Subjects: subjects,
					RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}})
			continue
		}
		create(role, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}})
	}
	return user.Config()
}

var _ = Describe("an agent's Lease", func() {
	It("is made with the permissions of the agents' roles alone, names what is applied, and stays when the agent stops", func(ctx SpecContext) {
		service(ctx, "cart", "10.96.0.7", "10.244.1.5:8080")
		inventory(ctx, "cart")
		n := newNode()
		n.createRules(ctx, nil)
		as := asAgent(ctx)
		n.startAt(clock.RealClock{}, as)
		Eventually(n.condition(ctx, v1alpha1.ConditionProgrammed)).Should(Equal("True/Programmed"))
		Eventually(leaseOf(ctx, n)).Should(And(
			HaveField("Spec.HolderIdentity", HaveValue(Equal(n.name))),
			HaveField("Spec.LeaseDurationSeconds", HaveValue(BeEquivalentTo(90))),
			HaveField("Spec.RenewTime", Not(BeNil())),
			HaveField("Spec.AcquireTime.Unix()", Equal(n.rules(ctx).Status.Agent.StartTime.Unix()))))
		n.stop()
		first, err := leaseOf(ctx, n)()
		Expect(err).NotTo(HaveOccurred(), "left when the agent stops")

		By("making it again after it was deleted")
		Expect(api.Delete(ctx, first)).To(Succeed())
		n.startAt(clock.RealClock{}, as)
		Eventually(leaseOf(ctx, n)).Should(HaveField("UID", Not(Equal(first.UID))))
		n.stop()

		By("taking it back from another writer")
		edited, err := leaseOf(ctx, n)()
		Expect(err).NotTo(HaveOccurred())
		before := edited.Spec.RenewTime
		edited.Spec.HolderIdentity, edited.Annotations = new("another-writer"), map[string]string{v1alpha1.AnnotationAppliedResourceVersion: "7"}
		Expect(api.Update(ctx, edited)).To(Succeed())
		n.startAt(clock.RealClock{}, as)
		Eventually(leaseOf(ctx, n)).Should(And(
			HaveField("Spec.HolderIdentity", HaveValue(Equal(n.name))), HaveField("Spec.RenewTime", Not(Equal(before)))))
	})

	It("is missed by an agent that may not write it, which goes on", func(ctx SpecContext) {
		n := newNode()
		n.startAt(clock.RealClock{}, rest.AnonymousClientConfig(config))
		Eventually(n.logged).Should(ContainSubstring("Could not renew this agent's Lease"))
		_, err := leaseOf(ctx, n)()
		Expect(err).To(HaveOccurred())
	})
})
