package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

const (
	// quickStart is the heading in README.md below which the commands are.
	quickStart = "## Run it on a cluster"
	// placeholder is what stands there for the API server's address.
	placeholder = "https://192.0.2.10:6443"
)

// installed is the version that is installed from nothing. The commands of
// README.md write it to dist, which is a directory of the test's own here.
func (w *world) installed() version {
	return version{name: first, dir: filepath.Join(w.temp, "dist")}
}

// startupTaint is on each Node from its registration.
func startupTaint() corev1.Taint {
	return corev1.Taint{Key: v1alpha1.TaintAgentNotReady, Effect: corev1.TaintEffectNoSchedule}
}

// installed installs nodeproxy with the commands of README.md on nodes that have
// the startup taint, and waits until all is well.
func installed(r *run) {
	v := r.installed()
	text, err := os.ReadFile(filepath.Join(r.root, "README.md"))
	r.must(err)
	blocks := blocksBelow(string(text), quickStart)
	if len(blocks) == 0 || len(blocks[0].lines) != 3 {
		r.Fatalf("README.md: want three commands below %q: %q", quickStart, blocks)
	}
	commands := blocks[0].lines
	admin := guide{document: "README.md", directory: r.root}
	r.must(os.MkdirAll(v.dir, 0o755))
	own := "make VERSION=" + v.name + " OUT=" + v.images() + " MANIFEST_OUTPUT=" + v.manifest() + " "
	admin.shell(r, strings.NewReplacer(placeholder, cluster.APIServerURL, "make ", own).Replace(commands[0]))
	built := time.Now()
	for _, archive := range v.archives() {
		r.must(r.cluster.LoadImage(r.ctx, archive)) // as from a registry
	}
	for _, node := range r.cluster.Nodes() {
		if !r.hasTaint(node.Name()) {
			r.Errorf("%s has no startup taint before anything is installed", node.Name())
		}
	}
	admin.shell(r, strings.ReplaceAll(commands[1], "dist/install.yaml", v.manifest()))
	admin.shell(r, commands[2])
	applied := time.Now()
	r.until(2*time.Minute, "each node reports the desired state", r.programmed)
	r.remark("built in %s, Programmed %s after the last command", seconds(built.Sub(r.begun)), seconds(time.Since(applied)))
	r.until(2*time.Minute, "all is well", r.well)
	r.remark("all pods ready after %s", seconds(time.Since(applied)))
	for _, node := range r.cluster.Nodes() {
		if r.hasTaint(node.Name()) {
			r.Errorf("%s still has the startup taint", node.Name())
		}
	}
	fmt.Println(r.kubectl("get", "nodes,pods", "-A"))
	fmt.Println(r.kubectl("get", "nodeproxyrules"))
	r.installWorkloads()
	r.background.Go(func() { _, _ = suite.next() }) // takes a while, and is needed later
}

func (r *run) hasTaint(name string) bool {
	r.Helper()
	node := &corev1.Node{}
	r.must(r.cluster.Client().Get(r.ctx, client.ObjectKey{Name: name}, node))
	for _, taint := range node.Spec.Taints {
		if taint.Key == v1alpha1.TaintAgentNotReady {
			return true
		}
	}
	return false
}
