package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// sample is the NodeProxy of the quick start.
const sample = "config/samples/nodeproxy-managed.yaml"

// nodeProxyDeleted deletes the NodeProxy, with removalPolicy Retain, and creates it
// again: the agents retain their rules meanwhile.
func nodeProxyDeleted(r *run) {
	pods, rules := r.agentPods(), r.settledRules()
	r.kubectl("delete", "nodeproxy", "cluster", "--timeout=30s")
	r.until(time.Minute, "each agent reports Retained", func() error {
		reasons := r.kubectl("get", "nodeproxyrules", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Programmed")].reason}`)
		if reasons != v1alpha1.ReasonRetained+" "+v1alpha1.ReasonRetained {
			return fmt.Errorf("they report %q", reasons)
		}
		return nil
	})
	r.agentsLook()
	r.sameRules(rules)
	r.kubectl("apply", "-f", filepath.Join(r.root, sample))
	r.until(time.Minute, "all is well", r.well)
	r.samePods(pods)
	r.sameRules(rules)
}

// document is one of docs/removal.md or docs/upgrade.md, read in a directory in which
// the install.yaml of a version is.
func (r *run) document(path string, v version) guide {
	return guide{document: path, directory: v.dir, names: strings.NewReplacer("OLD", first)}
}

// removed waits until nothing of an installation is left in the cluster.
func (r *run) removed() {
	r.Helper()
	r.until(2*time.Minute, "the namespace is gone", func() error {
		err := r.cluster.Client().Get(r.ctx, client.ObjectKey{Name: system}, &corev1.Namespace{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("namespace %s is still there: %w", system, err)
	})
	if left := r.kubectl("get", "crds,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings", "-o", "name"); strings.Contains(left, "nodeproxy") {
		r.Errorf("left in the cluster: %s", left)
	}
}

// removedWithRetain removes everything of nodeproxy but the rules, by
// docs/removal.md.
func removedWithRetain(r *run) {
	rules := r.settledRules()
	begin := time.Now()
	r.document("docs/removal.md", r.installed()).follow(r, "## With Retain")
	r.removed()
	r.remark("all pods gone after %s", seconds(time.Since(begin)))
	r.connections(3 * pace) // of nodeproxy nothing is there that could look
	r.sameRules(rules)
}

// installedAgain installs nodeproxy where its rules are already.
func installedAgain(r *run) {
	r.kubectl("apply", "--server-side", "-f", r.installed().manifest())
	r.kubectl("apply", "-f", filepath.Join(r.root, sample))
	took := r.until(2*time.Minute, "each node reports the desired state", r.programmed)
	r.remark("Programmed after %s", seconds(took))
	r.until(2*time.Minute, "all is well", r.well)
}

// ours are rules and chains that only a proxy makes. The kubelet has chains of its own.
var ours = regexp.MustCompile(`KUBE-(SVC|SEP|EXT|FW|SERVICES|NODEPORTS|POSTROUTING|PROXY|EXTERNAL|FORWARD|MARK-MASQ)|NODEPROXY`)

// ourTable is one of mode NFTables.
var ourTable = regexp.MustCompile(`(?m)^table ip6? nodeproxy$`)

// removedWithCleanup removes everything of nodeproxy, by docs/removal.md: the rules of the
// mode of the row before, of both modes nothing may be left. The third block there is to look
// at meanwhile.
func removedWithCleanup(r *run) {
	const heading = "## With Cleanup"
	by := r.document("docs/removal.md", r.installed())
	by.step(r, heading, 0)
	mode, begin := r.statusOf(r.cluster.Node(0)).Mode, time.Now()
	by.step(r, heading, 1)
	r.remark("mode %s; NodeProxy gone after %s", mode, seconds(time.Since(begin)))
	for _, what := range []string{"nodeproxyrules", "serviceproxyrules"} {
		if left := r.kubectl("get", what, "-o", "name"); left != "" {
			r.Errorf("left: %s", left)
		}
	}
	if left := r.kubectl("-n", system, "get", "daemonsets", "-o", "name"); left != "" {
		r.Errorf("left: %s", left)
	}
	for _, node := range r.cluster.Nodes() {
		for mode, has := range r.kernelHas(node) {
			if len(has) > 0 {
				r.Errorf("left on %s of mode %s: %q", node.Name(), mode, has)
			}
		}
	}
	if reported := by.step(r, heading, 3); reported != "" {
		r.Errorf("nodes were not waited for: %s", reported)
	}
	by.step(r, heading, 4)
	r.removed()
}
