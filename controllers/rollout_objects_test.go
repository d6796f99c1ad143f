package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// createPolicy creates a policy for the nodes with a label, such as pool=edge; all if
// empty.
func createPolicy(ctx context.Context, name, label string, edit ...func(*v1alpha1.NodeProxyPolicy)) *v1alpha1.NodeProxyPolicy {
	GinkgoHelper()
	p := &v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if key, value, found := strings.Cut(label, "="); found {
		p.Spec.NodeSelector.MatchLabels = map[string]string{key: value}
	}
	for _, e := range edit {
		e(p)
	}
	Expect(k8s.Create(ctx, p)).To(Succeed())
	return p
}

// edit changes the newest version of an object that users write.
func edit(ctx context.Context, object client.Object, change func()) {
	GinkgoHelper()
	Eventually(func() error {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		change()
		return k8s.Update(ctx, object)
	}).Should(Succeed())
}

// createPool creates Nodes with the label pool, and waits for their rules.
func createPool(ctx context.Context, pool string, names ...string) {
	GinkgoHelper()
	for _, name := range names {
		createNode(ctx, name, func(n *corev1.Node) { n.Labels["pool"] = pool })
	}
	for _, name := range names {
		Eventually(nodeRules(ctx, name)).ShouldNot(BeNil())
	}
}

// createMany is createPool with so many Nodes, and returns their names.
func createMany(ctx context.Context, pool string, count int) []string {
	GinkgoHelper()
	var names []string
	for i := range count {
		names = append(names, fmt.Sprintf("%s-%02d", pool, i+1))
	}
	createPool(ctx, pool, names...)
	return names
}

// percent is a maxUnavailable.
func percent(text string) *intstr.IntOrString { return new(intstr.Parse(text)) }

// echo reports for agents that they have applied what their nodes were given.
func echo(ctx context.Context, nodes ...string) {
	GinkgoHelper()
	for _, node := range nodes {
		reportAs(ctx, node, func(rules *v1alpha1.NodeProxyRules) {
			rules.Status.SettingsRevision = rules.Spec.SettingsRevision
			setProgrammed(rules, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "The desired state is programmed.")
		})
	}
}

// reportAs reports as the agent of a node.
func reportAs(ctx context.Context, node string, change func(*v1alpha1.NodeProxyRules)) {
	GinkgoHelper()
	Eventually(func() error {
		rules, err := nodeRules(ctx, node)()
		if err != nil {
			return err
		}
		rules.Status.Agent = &v1alpha1.AgentReport{Version: "v0.0.0-test", FormatVersions: v1alpha1.FormatVersions()}
		change(rules)
		return k8s.Status().Update(ctx, rules)
	}).Should(Succeed())
}

func setProgrammed(rules *v1alpha1.NodeProxyRules, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&rules.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionProgrammed, Status: status, Reason: reason, Message: message,
	})
}

// inMode returns the nodes that are given a mode, by name; for Eventually.
func inMode(ctx context.Context, mode v1alpha1.ProxyMode) func() ([]string, error) {
	return nodesWith(ctx, func(s *v1alpha1.ProxySettings) bool { return *s.Mode == mode })
}

// nodesWith returns the nodes with the desired settings, by name; for Eventually.
func nodesWith(ctx context.Context, desired func(*v1alpha1.ProxySettings) bool) func() ([]string, error) {
	return func() ([]string, error) {
		var list v1alpha1.NodeProxyRulesList
		err := k8s.List(ctx, &list)
		var out []string
		for i := range list.Items {
			if desired(&list.Items[i].Spec.Settings) {
				out = append(out, list.Items[i].Name)
			}
		}
		slices.Sort(out)
		return out, err
	}
}

// policyReady returns "status reason: message" of the condition Ready of a policy's
// present generation; for Eventually.
func policyReady(ctx context.Context, policy *v1alpha1.NodeProxyPolicy) func() (string, error) {
	return policyCondition(ctx, policy, v1alpha1.ConditionReady)
}

func policyCondition(ctx context.Context, policy *v1alpha1.NodeProxyPolicy, kind string) func() (string, error) {
	return func() (string, error) {
		p := &v1alpha1.NodeProxyPolicy{}
		err := k8s.Get(ctx, client.ObjectKeyFromObject(policy), p)
		c := meta.FindStatusCondition(p.Status.Conditions, kind)
		if err != nil || c == nil || c.ObservedGeneration != p.Generation {
			return "", err
		}
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message), nil
	}
}

// examples returns those in the status of a policy; for Eventually.
func examples(ctx context.Context, policy *v1alpha1.NodeProxyPolicy) func() ([]v1alpha1.NodeExample, error) {
	return func() ([]v1alpha1.NodeExample, error) {
		p := &v1alpha1.NodeProxyPolicy{}
		err := k8s.Get(ctx, client.ObjectKeyFromObject(policy), p)
		return p.Status.Examples, err
	}
}

// eventsAbout returns "type reason" of the events about rollouts of an object, in their
// order; for Eventually.
func eventsAbout(ctx context.Context, object client.Object) func() ([]string, error) {
	return func() ([]string, error) {
		var list eventsv1.EventList
		err := k8s.List(ctx, &list, client.InNamespace(metav1.NamespaceDefault))
		slices.SortFunc(list.Items, func(a, b eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
		var out []string
		for _, e := range list.Items {
			if e.Regarding.UID == object.GetUID() && e.Action == "RollOut" {
				out = append(out, e.Type+" "+e.Reason)
			}
		}
		return out, err
	}
}

// letPass puts the clock forward. The time that the controller waits for is not that of
// this clock, so something changes that it looks at.
func letPass(ctx context.Context, d time.Duration) {
	GinkgoHelper()
	testClock.putForward(d)
	var nodes corev1.NodeList
	Expect(k8s.List(ctx, &nodes)).To(Succeed())
	node := &nodes.Items[0]
	edit(ctx, node, func() { node.Labels["now"] = fmt.Sprint(testClock.Now().Unix()) })
}
