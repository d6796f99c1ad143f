package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

// TestMigration moves a cluster on which kube-proxy runs to nodeproxy and back
// again, with the commands of docs/migration.md and docs/removal.md. Each node is
// a pool. No connection may fail.
func TestMigration(t *testing.T) {
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	if !anyChosen(t, (&migration{}).rows()) {
		return
	}
	v, err := suite.first()
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	// An administrator whose Services are served need not state where the API
	// servers are.
	if err := (version{name: v.name, dir: directory}).writeManifest(suite.ctx, suite.root, ""); err != nil {
		t.Fatal(err)
	}
	m := &migration{directory: directory} // in which install.yaml is
	w := newWorld(t, kubelets.Options{Nodes: 2, CoreDNS: true, KubeProxy: true, Images: v.archives()})
	w.work(t, m.rows())
}

func (m *migration) rows() []row {
	return []row{
		{name: "fits", title: "kube-proxy serves", needed: true, do: m.fits},
		{name: "beside", title: "installed beside kube-proxy", needed: true, targets: steady, do: m.installedBeside},
		{name: "compare", title: "compared with kube-proxy's rules", needed: true, targets: steady, do: m.compared},
		{name: "want", title: "agents want to write, beside kube-proxy", needed: true, targets: steady, do: m.wanting},
		{name: "affinity", title: "kube-proxy kept off labeled nodes", needed: true, targets: steady, do: m.affinity},
		{name: "first-pool", title: "first pool cut over", needed: true, targets: steady, do: m.cutOver("edge")},
		{name: "second-pool", title: "second pool cut over", needed: true, targets: steady, do: m.cutOver("work")},
		{name: "returns", title: "kube-proxy comes back unasked, and goes", needed: true, targets: steady, do: m.returned},
		{name: "end", title: "kube-proxy deleted", needed: true, targets: steady, do: m.ended},
		{name: "back", title: "back to kube-proxy, pool by pool", needed: true, targets: steady, do: m.wentBack},
		{name: "removed", title: "nodeproxy removed with Retain", needed: true, targets: steady, do: m.removed},
	}
}

// migration is the way of a cluster to nodeproxy and back.
type migration struct {
	directory string
	// original are the rules of kube-proxy before anything was installed.
	original map[string][]string
}

const (
	moving   = "docs/migration.md"
	removing = "docs/removal.md"
)

// read has what is different on each cluster in the place of what the document
// reports of its example.
func (m *migration) read(document string, names ...string) guide {
	return guide{document: document, directory: m.directory,
		names: strings.NewReplacer(append(names, `"10.244.0.0/16"`, `"`+strings.ReplaceAll(cluster.PodRanges, ",", `", "`)+`"`)...)}
}

// pools are the nodes by the pool to which they belong.
func (r *run) pools() map[string]*kubelets.Node {
	return map[string]*kubelets.Node{"edge": r.cluster.Node(0), "work": r.cluster.Node(1)}
}

// ofPool are the document's names of a pool and its node, and those of another.
func (r *run) ofPool(pool string) []string {
	return []string{"pool=edge", "pool=" + pool, "nodeproxyrules/node-1", "nodeproxyrules/" + r.pools()[pool].Name()}
}

func (m *migration) fits(r *run) {
	r.until(2*time.Minute, "kube-proxy and the cluster's DNS are well", func() error { return r.cluster.PodsReady(r.ctx) })
	r.installWorkloads()
	for pool, node := range r.pools() {
		r.kubectl("label", "node", node.Name(), "pool="+pool)
	}
	m.read(moving).follow(r, "## 0. See whether it fits")
	m.original = r.settledRules()
}

// settledRules are the rules of each node once who serves it has nothing to write
// any more: kube-proxy's pods are ready before they have written anything, and
// pods that have just become ready are still to be entered.
func (r *run) settledRules() map[string][]string {
	r.Helper()
	before, since := r.writings(), time.Now()
	r.until(time.Minute, "the desired state is written", func() error {
		if now := r.writings(); !cmp.Equal(before, now, cmp.AllowUnexported(writing{})) {
			before, since = now, time.Now()
		}
		if time.Since(since) < 3*time.Second { // it waits for 1 s between two turns
			return errors.New("its rules have changed just now")
		}
		return nil
	})
	return r.allRules()
}

func (m *migration) installedBeside(r *run) {
	r.must(programs.Into(r.ctx, r.temp, programs.Plugin))
	before, rules := r.writings(), r.allRules()
	m.read(moving).follow(r, "## 1. Install beside kube-proxy")
	r.nothingWritten(before, r.writings())
	if diff := cmp.Diff(rules, r.allRules()); diff != "" {
		r.Errorf("the rules have changed (-before +after):\n%s", diff)
	}
	for _, directory := range []string{"crd", "rbac", "manager", "samples"} {
		r.kubectl("apply", "--dry-run=server", "--server-side", "--force-conflicts", "-k", filepath.Join(r.root, "config", directory))
	}
	r.kubectl("apply", "--dry-run=server", "--server-side", "-f", filepath.Join(m.directory, "install.yaml"))
}

func (m *migration) compared(r *run) {
	before := r.writings()
	m.read(moving).follow(r, "## 2. Compare")
	for _, node := range r.cluster.Nodes() {
		status := r.statusOf(node)
		if reason := reasonOf(status); reason != v1alpha1.ReasonAuditInSync || status.Difference == nil || status.Difference.Count != 0 {
			r.Errorf("%s reports %s, %+v", node.Name(), reason, status.Difference)
		}
	}
	r.nothingWritten(before, r.writings())
}

func (m *migration) wanting(r *run) {
	before, rules := r.writings(), r.allRules()
	m.read(moving).follow(r, "## 3. Set enforcement to Enforce")
	r.until(20*time.Second, "all agents yield", func() error { return r.report(v1alpha1.ReasonConflictingProxy, r.cluster.Nodes()...) })
	r.agentsLook()
	r.nothingWritten(before, r.writings())
	if diff := cmp.Diff(rules, r.allRules()); diff != "" {
		r.Errorf("the rules have changed (-before +after):\n%s", diff)
	}
}

func (m *migration) affinity(r *run) {
	m.read(moving).follow(r, "### Make kube-proxy leave nodes with a label")
	r.settledRules()
	// Where the new kube-proxy has taken long, the agent has served for a moment.
	r.until(20*time.Second, "all agents yield", func() error { return r.report(v1alpha1.ReasonConflictingProxy, r.cluster.Nodes()...) })
}

// cutOver follows the document for the nodes of one pool. A pod that starts
// while no proxy runs there must be served afterwards.
func (m *migration) cutOver(pool string) func(r *run) {
	return func(r *run) {
		node := r.pools()[pool]
		before := r.writings(node)
		gap := m.watchGap(r, node)
		m.read(moving, r.ofPool(pool)...).follow(r, "### Cut over a pool")
		programmed := time.Now()
		r.must(r.report(v1alpha1.ReasonProgrammed, node))
		g := <-gap
		r.must(g.err)
		r.remark("kube-proxy's end to Programmed %s; a pod that became ready %s after kube-proxy's end was served %s later",
			seconds(programmed.Sub(g.ended)), seconds(g.ready.Sub(g.ended)), seconds(g.served.Sub(g.ready)))
		r.nothingWritten(before, r.writings(node))
	}
}

// gap is the time in which no proxy follows changes on a node.
type gap struct {
	ended  time.Time // kube-proxy's
	ready  time.Time // the pod that started in it
	served time.Time // when the pod got its first connection by the node's rules
	err    error
}

// watchGap waits until kube-proxy ends on a node, adds a pod to the Service
// rolling then, and waits until the node's rules lead to it.
func (m *migration) watchGap(r *run, node *kubelets.Node) <-chan gap {
	from, service := r.clients()[node.Name()], r.service("rolling").Spec.ClusterIP+":80"
	pods, result := len(r.names("rolling")), make(chan gap, 1)
	ctx, cancel := context.WithTimeout(r.ctx, 2*time.Minute)
	r.Cleanup(cancel)
	go func() {
		var g gap
		g.err = every(ctx, 20*time.Millisecond, func() error { return closed(ctx, node, "127.0.0.1:10256") })
		g.ended = time.Now()
		if g.err == nil {
			_, g.err = r.cluster.Kubectl(ctx, "-n", shop, "scale", "deployment", "rolling", fmt.Sprintf("--replicas=%d", pods+1))
		}
		var name string
		if g.err == nil {
			g.err = every(ctx, 100*time.Millisecond, func() (err error) {
				name, err = r.youngestReady(ctx, pods+1)
				return err
			})
			g.ready = time.Now()
		}
		if g.err == nil {
			g.err = every(ctx, 20*time.Millisecond, func() error {
				if answer, err := from.Dial(ctx, "tcp", service); err != nil || answer.Server != name {
					return fmt.Errorf("%s has had no connection yet: %w", name, err)
				}
				return nil
			})
			g.served = time.Now()
		}
		result <- g
	}()
	return result
}

// youngestReady is the name of the last of the pods of rolling, when all are ready.
func (r *run) youngestReady(ctx context.Context, count int) (string, error) {
	list := &corev1.PodList{}
	if err := r.cluster.Client().List(ctx, list, client.InNamespace(shop), client.MatchingLabels{"app": "rolling"}); err != nil {
		return "", err
	}
	serving := slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return !ready(&pod) })
	if len(serving) < count {
		return "", fmt.Errorf("%d pods of %d are ready", len(serving), count)
	}
	return slices.MaxFunc(serving, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) }).Name, nil
}

// every calls f at once and after each pause, until it returns nil.
func every(ctx context.Context, pause time.Duration, f func() error) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// closed returns nil when nothing listens at an address of a node.
func closed(ctx context.Context, node *kubelets.Node, address string) error {
	err := node.Do(func() error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err == nil {
		return fmt.Errorf("a program listens at %s of %s", address, node.Name())
	}
	return nil
}

// returned does what an upgrade by kubeadm does to kube-proxy's DaemonSet, and
// then makes it leave the nodes again.
func (m *migration) returned(r *run) {
	r.kubectl("-n", "kube-system", "patch", "daemonset", "kube-proxy", "--type=json", "-p", `[{"op":"remove","path":"/spec/template/spec/affinity"}]`)
	yielded := r.until(time.Minute, "all agents yield", func() error { return r.report(v1alpha1.ReasonConflictingProxy, r.cluster.Nodes()...) })
	r.kubectl("-n", "kube-system", "rollout", "status", "daemonset", "kube-proxy", "--timeout=60s")
	r.until(20*time.Second, "NodeProxy reports it", func() error {
		text, err := r.cluster.Kubectl(r.ctx, "get", "nodeproxy", "cluster", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]}`)
		if err == nil && !strings.Contains(text, v1alpha1.ReasonConflictingProxy) {
			err = fmt.Errorf("its condition Ready is %s", text)
		}
		return err
	})
	r.kubectl("-n", "kube-system", "wait", "pods", "-l", "k8s-app=kube-proxy", "--for=condition=Ready", "--timeout=60s")
	r.agentsLook()
	r.must(r.report(v1alpha1.ReasonConflictingProxy, r.cluster.Nodes()...))
	begin := time.Now()
	m.read(moving).follow(r, "### Make kube-proxy leave nodes with a label")
	r.until(time.Minute, "agents serve again", r.programmed)
	r.remark("agents yielded after %s, and served again %s after kube-proxy was sent away", seconds(yielded), seconds(time.Since(begin)))
}

func (m *migration) ended(r *run) {
	printed := m.read(moving).follow(r, "## 5. The end")
	if !strings.Contains(printed[0], cluster.APIServerURL) {
		r.Errorf("the ConfigMap with the API servers does not hold %s: %s", cluster.APIServerURL, printed[0])
	}
	r.must(r.programmed())
	r.agentsLook()
	r.must(r.programmed())
	if text, err := os.ReadFile(filepath.Join(m.directory, "kube-proxy.yaml")); err != nil || !strings.Contains(string(text), "DaemonSet") {
		r.Errorf("kube-proxy.yaml holds %q, %v", text, err)
	}
}

func (m *migration) wentBack(r *run) {
	m.read(moving).follow(r, "### Bring kube-proxy's DaemonSet back")
	r.until(time.Minute, "labels keep kube-proxy away", func() error {
		const about = "{.metadata.generation} {.status.observedGeneration} {.status.desiredNumberScheduled}"
		now := r.kubectl("-n", "kube-system", "get", "daemonset", "kube-proxy", "-o", "jsonpath="+about)
		if f := strings.Fields(now); len(f) != 3 || f[0] != f[1] || f[2] != "0" {
			return fmt.Errorf("its generation, the observed one and the number of nodes where it is to run: %s", now)
		}
		return nil
	})
	r.agentsLook()
	r.must(r.programmed())
	for _, pool := range []string{"edge", "work"} {
		begin, node := time.Now(), r.pools()[pool]
		m.read(moving, r.ofPool(pool)...).follow(r, "### Give a pool back")
		r.remark("pool %s: the agent yielded %s after the label was off", pool, seconds(time.Since(begin)))
		r.must(r.report(v1alpha1.ReasonConflictingProxy, node))
		r.until(time.Minute, "kube-proxy serves", func() error {
			if closed(r.ctx, node, "127.0.0.1:10256") == nil {
				return errors.New("its health port is closed")
			}
			return nil
		})
	}
	r.kubeProxysRules(m.original)
}

// kubeProxysRules compares the rules of kube-proxy with those that it has had, which
// it may write in another order. The pods of rolling are more by now.
func (r *run) kubeProxysRules(before map[string][]string) {
	r.Helper()
	r.kubectl("-n", shop, "scale", "deployment", "rolling", "--replicas=3")
	if diff := cmp.Diff(inAnyOrder(before), inAnyOrder(r.settledRules())); diff != "" {
		r.Errorf("kube-proxy's rules are others than before (-before +after):\n%s", diff)
	}
}

// inAnyOrder sorts the rules of each node, because kube-proxy writes those of all Services
// in another order each time. It leaves out those of rolling.
func inAnyOrder(rules map[string][]string) map[string][]string {
	all := map[string][]string{}
	for node, lines := range rules {
		for _, line := range lines {
			if !strings.Contains(line, shop+"/rolling") {
				all[node] = append(all[node], line)
			}
		}
		slices.Sort(all[node])
	}
	return all
}

func (m *migration) removed(r *run) {
	before := r.allRules()
	m.read(removing).follow(r, "## Back to kube-proxy")
	if pods := r.kubectl("get", "pods", "-A", "-o", "name"); strings.Contains(pods, "nodeproxy") {
		r.Errorf("pods of nodeproxy are left: %s", pods)
	}
	if kinds := r.kubectl("get", "crd,namespaces,clusterroles,validatingadmissionpolicies", "-o", "name"); strings.Contains(kinds, "nodeproxy") {
		r.Errorf("objects of nodeproxy are left: %s", kinds)
	}
	// kube-proxy may have written meanwhile.
	if diff := cmp.Diff(inAnyOrder(before), inAnyOrder(r.allRules())); diff != "" {
		r.Errorf("the rules have changed (-before +after):\n%s", diff)
	}
}

// report returns nil when the agents of nodes give a reason for Programmed.
func (w *world) report(reason string, nodes ...*kubelets.Node) error {
	for _, node := range nodes {
		rules := &v1alpha1.NodeProxyRules{}
		if err := w.cluster.Client().Get(w.ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
			return err
		}
		if now := reasonOf(rules.Status); now != reason {
			return fmt.Errorf("%s reports %s, not %s", node.Name(), now, reason)
		}
	}
	return nil
}

func (r *run) statusOf(node *kubelets.Node) v1alpha1.NodeProxyRulesStatus {
	r.Helper()
	rules := &v1alpha1.NodeProxyRules{}
	r.must(r.cluster.Client().Get(r.ctx, client.ObjectKey{Name: node.Name()}, rules))
	return rules.Status
}

func reasonOf(status v1alpha1.NodeProxyRulesStatus) string {
	if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed); c != nil {
		return c.Reason
	}
	return "nothing"
}
