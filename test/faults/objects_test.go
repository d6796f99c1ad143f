package faults

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

func objectFaults() []fault {
	return []fault{
		{name: "rules-objects-deleted", title: "`kubectl delete serviceproxyrules --all`", repair: 30 * time.Second, inject: rulesObjectsDeleted},
		{name: "nodeproxy-deleted", title: "NodeProxy deleted, and created again after 15 s", repair: 30 * time.Second, inject: nodeProxyDeleted},
		{name: "node-deleted", title: "Node deleted, and registered again after 5 s", repair: 30 * time.Second, inject: nodeDeleted},
		{name: "crds-deleted", title: "all CRDs deleted, and installed again after 10 s", repair: 60 * time.Second, inject: crdsDeleted},
	}
}

// rulesObjectsDeleted deletes them once with a controller, which makes them again
// at once, and once without, so that nodes have to hold their rules.
func rulesObjectsDeleted(r *run) {
	stop := r.change(200 * time.Millisecond)
	r.pass(time.Second)
	before := r.rulesObjects()
	_, err := r.cluster.Kubectl(r.ctx, "delete", "serviceproxyrules", "--all")
	r.must(err)
	r.pass(2 * time.Second)
	r.until(30*time.Second, func(context.Context) error {
		now := r.rulesObjects()
		for name, uid := range before {
			if now[name] == "" || now[name] == uid {
				return fmt.Errorf("ServiceProxyRules %s has UID %q, %q before it was deleted", name, now[name], uid)
			}
		}
		return nil
	})
	stop()
	for _, controller := range r.controllers {
		r.must(controller.Stop())
	}
	r.controllers = nil
	_, err = r.cluster.Kubectl(r.ctx, "delete", "serviceproxyrules", "--all")
	r.must(err)
	r.until(30*time.Second, func(ctx context.Context) error { return r.nodeproxy.Reported(ctx, v1alpha1.ReasonRetained) })
	r.must(r.startControllers())
	r.ended = time.Now()
}

// rulesObjects are the UIDs of all ServiceProxyRules, by name.
func (r *run) rulesObjects() map[string]types.UID {
	r.Helper()
	list := &v1alpha1.ServiceProxyRulesList{}
	r.must(r.cluster.Client().List(r.ctx, list))
	uids := map[string]types.UID{}
	for i := range list.Items {
		uids[list.Items[i].Name] = list.Items[i].UID
	}
	if len(uids) == 0 {
		r.Fatal("there are no ServiceProxyRules")
	}
	return uids
}

// nodeProxyDeleted waits until nodes report that they retain what they have.
func nodeProxyDeleted(r *run) {
	stop := r.change(500 * time.Millisecond)
	_, err := r.cluster.Kubectl(r.ctx, "delete", "nodeproxy", v1alpha1.NodeProxyName)
	r.must(err)
	r.pass(15 * time.Second)
	if err := r.nodeproxy.Reported(r.ctx, v1alpha1.ReasonRetained); err != nil {
		r.Errorf("15 s after NodeProxy was deleted not all nodes report %s: %v", v1alpha1.ReasonRetained, err)
	}
	r.must(r.nodeproxy.Enable(r.ctx))
	r.ended = time.Now()
	stop()
}

func nodeDeleted(r *run) {
	node := r.cluster.Node(0)
	stop := r.change(200 * time.Millisecond)
	r.must(r.cluster.Client().Delete(r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name()}}))
	deleted := time.Now()
	r.until(30*time.Second, func(ctx context.Context) error {
		rules := &v1alpha1.NodeProxyRules{}
		err := r.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules)
		if err == nil && rules.Annotations[v1alpha1.AnnotationNodeAbsentSince] == "" {
			err = fmt.Errorf("the controller has not noticed that Node %s is gone", node.Name())
		}
		return err
	})
	r.pass(time.Until(deleted.Add(5 * time.Second)))
	r.must(node.Register(r.ctx))
	r.ended = time.Now()
	stop()
}

// crdsDeleted deletes all objects with the CRDs, among them NodeProxy, which has to be
// created again after the CRDs.
func crdsDeleted(r *run) {
	stop := r.change(500 * time.Millisecond)
	_, err := r.cluster.Kubectl(r.ctx, "delete", "-f", r.crds(), "--timeout=60s")
	r.must(err)
	for _, kind := range []string{"serviceproxyrules", "nodeproxyrules", "nodeproxies"} {
		r.until(10*time.Second, func(context.Context) error { return r.gone(kind) })
	}
	r.until(30*time.Second, r.agentsMiss(r.cluster.Nodes(), "nodeproxies", "nodeproxyrules", "serviceproxyrules"))
	r.pass(10 * time.Second)
	r.must(r.nodeproxy.Prepare(r.ctx))
	r.must(r.nodeproxy.Enable(r.ctx))
	r.ended = time.Now()
	stop()
}

// agentsMiss returns an error until the agent of each node has found that it cannot read the kinds.
func (r *run) agentsMiss(nodes []*cluster.Node, kinds ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, node := range nodes {
			text, err := node.Get(ctx, "http://127.0.0.1:19256/metrics")
			if err != nil {
				return err
			}
			for _, kind := range kinds {
				if !strings.Contains(text, fmt.Sprintf("nodeproxy_agent_watch_failing{resource=%q} 1\n", kind)) {
					return fmt.Errorf("the agent of %s still reads %s", node.Name(), kind)
				}
			}
		}
		return nil
	}
}
