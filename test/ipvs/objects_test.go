package ipvs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// patch changes the NodeProxy.
func (w *world) patch(ctx context.Context, patch string) error {
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	return w.cluster.Client().Patch(ctx, np, client.RawPatch("application/merge-patch+json", []byte(patch)))
}

// set changes settings, given as the text of JSON fields, until the end of the test,
// and waits until all nodes have them.
func (t test) set(fields string) {
	t.Helper()
	t.restore()
	t.change(fields)
	t.until(t.programmed)
}

// restore puts the settings back at the end of the test.
func (t test) restore() {
	t.Helper()
	t.Cleanup(func() {
		err := errors.Join(t.patch(t.ctx, settings), install.Until(t.ctx, limit, t.revised), install.Until(t.ctx, limit, t.programmed))
		if err != nil {
			t.Error("putting the settings back:", err)
		}
	})
}

// change changes settings; the caller has to put them back.
func (t test) change(fields string) {
	t.Helper()
	if err := t.patch(t.Context(), fmt.Sprintf(`{"spec":{"settings":{%s}}}`, fields)); err != nil {
		t.Fatal(err)
	}
	t.until(t.revised)
}

// revised returns nil once the controller has rendered the settings of the NodeProxy
// as they are now.
func (w *world) revised(ctx context.Context) error {
	np := &v1alpha1.NodeProxy{}
	if err := w.cluster.Client().Get(ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np); err != nil {
		return err
	}
	if np.Status.ObservedGeneration != np.Generation {
		return fmt.Errorf("the controller has seen generation %d of the NodeProxy, there is %d", np.Status.ObservedGeneration, np.Generation)
	}
	for _, node := range w.cluster.Nodes() {
		rules, err := w.rules(ctx, node)
		if err != nil {
			return err
		}
		if want := v1alpha1.CompleteSettings((*v1alpha1.ProxySettings)(np.Spec.Settings)); !equality.Semantic.DeepEqual(rules.Spec.Settings, *want) {
			return fmt.Errorf("the settings of %s are not rendered yet", node.Name())
		}
	}
	return nil
}

// until waits until f returns nil.
func (t test) until(f func(ctx context.Context) error) {
	t.Helper()
	if err := install.Until(t.Context(), limit, f); err != nil {
		t.Fatal(err)
	}
}

// rules returns a node's NodeProxyRules.
func (w *world) rules(ctx context.Context, node *cluster.Node) (*v1alpha1.NodeProxyRules, error) {
	rules := &v1alpha1.NodeProxyRules{}
	return rules, w.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules)
}

// status waits until f finds a node's status right.
func (t test) status(node *cluster.Node, f func(s *v1alpha1.NodeProxyRulesStatus) error) {
	t.Helper()
	t.until(func(ctx context.Context) error {
		rules, err := t.rules(ctx, node)
		if err != nil {
			return err
		}
		if err := f(&rules.Status); err != nil {
			return fmt.Errorf("%s: %w", node.Name(), err)
		}
		return nil
	})
}

// condition waits until a condition of a node has a status and a reason, and a
// message that holds a text.
func (t test) condition(node *cluster.Node, kind string, status metav1.ConditionStatus, reason, text string) {
	t.Helper()
	t.status(node, func(s *v1alpha1.NodeProxyRulesStatus) error {
		return hasCondition(s, kind, status, reason, text)
	})
}

func hasCondition(s *v1alpha1.NodeProxyRulesStatus, kind string, status metav1.ConditionStatus, reason, text string) error {
	c := meta.FindStatusCondition(s.Conditions, kind)
	switch {
	case c == nil:
		return fmt.Errorf("no condition %s; want %s, %s", kind, status, reason)
	case c.Status != status || reason != "" && c.Reason != reason || !strings.Contains(c.Message, text):
		return fmt.Errorf("%s is %s, %s: %s; want %s, %s: …%s…", kind, c.Status, c.Reason, c.Message, status, reason, text)
	}
	return nil
}
