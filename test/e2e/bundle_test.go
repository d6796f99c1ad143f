package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
	"github.com/nodeproxy-io/nodeproxy/test/olm"
)

// installing is what is reported of OLM.
const installing = "docs/olm.md"

// TestBundle installs nodeproxy by its bundle, upgrades it to the next one and
// removes it in both orders, as OLM does. OLM itself is not there: package olm.
func TestBundle(t *testing.T) {
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	rows := (&bundled{}).rows()
	if !anyChosen(t, rows) {
		return
	}
	var started sync.WaitGroup
	started.Go(func() { _, _ = suite.first() }) // while the cluster starts
	t.Cleanup(started.Wait)
	w := newWorld(t, kubelets.Options{Nodes: 2, CoreDNS: true})
	b := &bundled{operator: &olm.Operator{
		Client: w.cluster.Client(), Namespace: system,
		// Nothing proxies yet, so without this the controller reaches no API server.
		Env: []corev1.EnvVar{{Name: "NODEPROXY_API_SERVERS", Value: cluster.APIServerURL}},
	}}
	v, err := suite.first()
	if err != nil {
		t.Fatal(err)
	}
	b.older = b.generate(t, w, v, "0.1.0")
	for _, archive := range v.archives() {
		if err := w.cluster.LoadImage(w.ctx, archive); err != nil {
			t.Fatal(err)
		}
	}
	w.work(t, b.rows())
}

func (b *bundled) rows() []row {
	return []row{
		{name: "bundle-installed", title: "bundle installed, in Audit and then Enforce", needed: true, do: b.installed},
		{name: "bundle-upgraded", title: "upgraded to the next bundle", needed: true, targets: steady, do: b.upgraded},
		{name: "bundle-crds-first", title: "removed, CRDs first", needed: true, targets: steady, do: b.removedCRDsFirst},
		{name: "bundle-again", title: "installed again", needed: true, targets: steady, do: b.installedAgain},
		{name: "bundle-controller-first", title: "removed, controller first", needed: true, targets: steady, do: b.removedControllerFirst},
		{name: "bundle-over-rest", title: "installed over what was left", needed: true, targets: steady, do: b.installedAgain},
		{name: "bundle-namespace", title: "removed with its namespace", needed: true, targets: steady, do: b.removedWithNamespace},
	}
}

// bundled is nodeproxy as an operator.
type bundled struct {
	operator     *olm.Operator
	older, newer *olm.Bundle
	present      *olm.Bundle // which is installed, or was last
}

// generate makes the bundle of a version, as make bundle does for a release.
func (b *bundled) generate(t *testing.T, w *world, v version, release string) *olm.Bundle {
	t.Helper()
	directory := filepath.Join(w.temp, "bundle-"+release)
	command := exec.CommandContext(w.ctx, filepath.Join(w.root, "hack", "bundle.sh"))
	command.Env = append(os.Environ(), "RELEASE="+release, "CHANNEL=e2e", "REPLACES=", "BUNDLE_OUTPUT="+directory,
		"CONTROLLER_IMAGE="+v.image("nodeproxy-controller"), "AGENT_IMAGE="+v.image("nodeproxy-agent"))
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("making a bundle: %v: %s", err, out)
	}
	made, err := olm.Read(directory)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// installs has OLM install a bundle, and upgrade if another one is there.
func (b *bundled) installs(r *run, next *olm.Bundle) {
	r.Helper()
	r.must(b.operator.Install(r.ctx, next))
	b.present = next
}

// installed installs the bundle into a namespace without any labels.
func (b *bundled) installed(r *run) {
	r.must(b.operator.Client.Create(r.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}))
	begin := time.Now()
	b.installs(r, b.older)
	r.remark("controllers available after %s", seconds(time.Since(begin)))
	b.hasClusterObjects(r)
	env := r.kubectl("-n", system, "get", "deployment", "nodeproxy-controller", "-o", `jsonpath={.spec.template.spec.containers[0].env[?(@.name=="NODEPROXY_API_SERVERS")].value}`)
	if env != cluster.APIServerURL {
		r.Errorf("the controller has NODEPROXY_API_SERVERS=%q", env)
	}
	r.kubectl("apply", "-f", filepath.Join(r.root, "config", "samples", "nodeproxy-audit.yaml"))
	r.until(2*time.Minute, "each agent compares", func() error { return r.reasonsBegin("Audit") })
	for _, node := range r.cluster.Nodes() {
		for _, rule := range r.rules(node) {
			if strings.Contains(rule, "KUBE-SVC") {
				r.Errorf("%s has been written to: %s", node.Name(), rule)
			}
		}
	}
	r.patch(`{"spec":{"settings":{"enforcement":"Enforce"}}}`)
	took := r.until(2*time.Minute, "each node reports the desired state", func() error { return r.reasonsBegin(v1alpha1.ReasonProgrammed) })
	r.remark("Programmed %s after Enforce", seconds(took))
	r.until(2*time.Minute, "all is well", r.well)
	r.installWorkloads()
	r.background.Go(func() { _, _ = suite.next() }) // takes a while, and is needed next
}

// reasonsBegin returns nil when the reasons of Programmed of all nodes begin so.
func (r *run) reasonsBegin(with string) error {
	for _, node := range r.cluster.Nodes() {
		rules := &v1alpha1.NodeProxyRules{}
		if err := r.cluster.Client().Get(r.ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
			return err
		}
		c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
		if c == nil || !strings.HasPrefix(c.Reason, with) {
			return fmt.Errorf("%s: Programmed is %+v", node.Name(), c)
		}
	}
	return nil
}

// hasClusterObjects checks that the controller has made what OLM cannot carry.
func (b *bundled) hasClusterObjects(r *run) {
	r.Helper()
	r.until(30*time.Second, "policies and labels are there", func() error {
		for _, kind := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
			if names := strings.Fields(r.kubectl("get", kind, "-l", "app.kubernetes.io/part-of=nodeproxy", "-o", "name")); len(names) != 4 {
				return fmt.Errorf("%s: %q", kind, names)
			}
		}
		if level := r.kubectl("get", "namespace", system, "-o", `jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}`); level != "privileged" {
			return fmt.Errorf("the namespace's level is %q", level)
		}
		return nil
	})
	out, err := r.cluster.Kubectl(r.ctx, "create", "--dry-run=server", "-f", filepath.Join(r.root, "test", "olm", "testdata", "by-hand.yaml"))
	if err == nil || !strings.Contains(err.Error()+out, "are written by nodeproxy-controller only") {
		r.Errorf("rendered rules made by hand: %v %s", err, out)
	}
}

// upgraded upgrades to a bundle of another version: agents are replaced one after
// the other, and what is in the kernel is not even written again.
func (b *bundled) upgraded(r *run) {
	v, err := suite.next()
	r.must(err)
	for _, archive := range v.archives() {
		r.must(r.cluster.LoadImage(r.ctx, archive))
	}
	b.newer = b.generate(r.T, r.world, v, "0.2.0")
	uid := r.kubectl("get", "nodeproxy", "cluster", "-o", "jsonpath={.metadata.uid}")
	rules := r.settledRules()
	written := r.writings()
	oneByOne := b.watchAgents(r)
	begin := time.Now()
	b.installs(r, b.newer)
	r.until(3*time.Minute, "each agent is of the version", func() error { return r.agentsHave(v.image("nodeproxy-agent")) })
	r.until(time.Minute, "all is well", r.well)
	r.remark("all replaced in %s", seconds(time.Since(begin)))
	if most := oneByOne(); most != 1 {
		r.Errorf("%d agents were away at a time, want one after the other", most)
	}
	r.sameRules(rules)
	r.nothingWritten(written, r.writings())
	if now := r.kubectl("get", "nodeproxy", "cluster", "-o", "jsonpath={.metadata.uid}"); now != uid {
		r.Error("NodeProxy is another one")
	}
	if left := r.kubectl("get", "clusterroles,clusterrolebindings", "-l", "olm.owner="+b.older.Name(), "-o", "name"); left != "" {
		r.Errorf("left of the version before: %s", left)
	}
	b.hasClusterObjects(r)
}

// watchAgents checks the agents until the result is called, which returns how many
// were not ready at a time at most.
func (b *bundled) watchAgents(r *run) (most func() int) {
	ctx, end := context.WithCancel(r.ctx)
	result := make(chan int, 1)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		worst := 0
		for {
			select {
			case <-ctx.Done():
				result <- worst
				return
			case <-tick.C:
			}
			pods, err := r.pods(system, "app.kubernetes.io/name=nodeproxy-agent")
			if err != nil {
				continue // the next check shows it
			}
			away := len(r.cluster.Nodes())
			for _, pod := range pods {
				if ready(&pod) {
					away--
				}
			}
			worst = max(worst, away)
		}
	}()
	r.Cleanup(end)
	return func() int { end(); return <-result }
}

// deleteCRDs deletes them by hand, with all objects of their kinds, and waits until
// the agents have found that.
func (b *bundled) deleteCRDs(r *run) {
	r.Helper()
	r.kubectl(append([]string{"delete", "crd", "--timeout=60s"}, b.present.CRDs()...)...)
	r.agentsMissKinds()
}

// held checks that nodes have the rules of before once the agents have looked at what
// is left.
func (b *bundled) held(r *run, rules map[string][]string, written map[string]writing) {
	r.Helper()
	r.agentsLook()
	r.sameRules(rules)
	r.nothingWritten(written, r.writings())
}

// retained asks for Cleanup, and takes it back as docs/olm.md requires before
// something else than NodeProxy is deleted first.
func (b *bundled) retained(r *run) {
	r.Helper()
	r.patch(`{"spec":{"removalPolicy":"Cleanup"}}`)
	finalizers := func() string {
		return r.kubectl("get", "nodeproxy", "cluster", "-o", "jsonpath={.metadata.finalizers}")
	}
	r.until(30*time.Second, "NodeProxy has the finalizer", func() error {
		if now := finalizers(); !strings.Contains(now, v1alpha1.FinalizerCleanup) {
			return fmt.Errorf("it has %q", now)
		}
		return nil
	})
	guide{document: installing, directory: r.root}.step(r, "### In another order", 0)
	if now := finalizers(); now != "" {
		r.Errorf("NodeProxy has the finalizers %s", now)
	}
}

func (b *bundled) removedCRDsFirst(r *run) {
	rules, written := r.settledRules(), r.writings()
	b.retained(r)
	b.deleteCRDs(r)
	b.held(r, rules, written) // controller and agents are there
	r.must(b.operator.Remove(r.ctx, b.present))
	r.controllersGone()
	b.held(r, rules, written)
}

func (b *bundled) removedControllerFirst(r *run) {
	rules, written := r.settledRules(), r.writings()
	b.retained(r)
	r.must(b.operator.Remove(r.ctx, b.present))
	r.controllersGone()
	b.held(r, rules, written) // CRDs and agents are there
	b.deleteCRDs(r)
	b.held(r, rules, written)
}

func (r *run) controllersGone() {
	r.Helper()
	r.until(time.Minute, "the controllers are gone", func() error {
		pods, err := r.pods(system, "app.kubernetes.io/name=nodeproxy-controller")
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("%d are there", len(pods))
		}
		return err
	})
}

// installedAgain installs the operator where agents, rules, ConfigMap and policies
// are from before, by what docs/removal.md describes.
func (b *bundled) installedAgain(r *run) {
	b.installs(r, b.present)
	r.kubectl("apply", "-f", filepath.Join(r.root, sample))
	guide{document: removing, directory: r.root}.step(r, "### Installing it again", 0)
	took := r.until(2*time.Minute, "each node reports the desired state", r.programmed)
	r.remark("Programmed after %s", seconds(took))
	r.until(2*time.Minute, "all is well", r.well)
	b.hasClusterObjects(r)
}

// removedWithNamespace removes all of it by docs/olm.md, but what only OLM can: the
// policies go with the namespace.
func (b *bundled) removedWithNamespace(r *run) {
	rules := r.settledRules()
	r.must(b.operator.Remove(r.ctx, b.present))
	guide{document: installing, directory: r.root}.step(r, "## Removal", 1)
	r.until(time.Minute, "the policies are gone", func() error {
		err := r.cluster.Client().Get(r.ctx, client.ObjectKey{Name: system}, &corev1.Namespace{})
		if !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the namespace is there"), err)
		}
		if left := r.kubectl("get", "validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles,clusterrolebindings", "-o", "name"); strings.Contains(left, "nodeproxy") {
			return fmt.Errorf("left: %s", left)
		}
		return nil
	})
	r.sameRules(rules)
}
