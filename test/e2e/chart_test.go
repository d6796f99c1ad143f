package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
)

// TestChart installs nodeproxy by Helm without values where nothing proxies, upgrades it, and
// removes it with and without its rules.
func TestChart(t *testing.T) {
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	if !anyChosen(t, chartRows()) {
		return
	}
	var started sync.WaitGroup
	started.Go(func() { _, _ = suite.first() }) // while the cluster starts
	t.Cleanup(started.Wait)
	w := newWorld(t, kubelets.Options{Nodes: 2, CoreDNS: true})
	v, err := suite.first()
	if err != nil {
		t.Fatal(err)
	}
	for _, archive := range v.archives() {
		if err := w.cluster.LoadImage(w.ctx, archive); err != nil {
			t.Fatal(err)
		}
	}
	w.work(t, chartRows())
}

func chartRows() []row {
	return []row{
		{name: "chart-installed", title: "chart installed without values", needed: true, do: chartInstalled},
		{name: "chart-upgraded", title: "chart upgraded to another version and mode", needed: true, targets: steady, pace: modesPace, do: chartUpgraded},
		{name: "chart-rolled-back", title: "chart rolled back", needed: true, targets: steady, pace: modesPace, do: chartRolledBack},
		{name: "chart-uninstalled", title: "chart uninstalled by mistake, and installed again", needed: true, targets: steady, do: chartUninstalled},
		{name: "chart-retain", title: "removed with Retain", needed: true, targets: steady, do: chartRetain},
		{name: "chart-cleanup", title: "chart installed again, and removed with Cleanup", needed: true, do: chartCleanup},
	}
}

// chart is a document with Helm's commands, for the chart of a version.
func (r *run) chart(document string, v version) guide {
	return guide{document: document, directory: v.dir, names: strings.NewReplacer(
		"helm ", filepath.Join(r.root, "hack", "tool.sh")+" helm ",
		"dist/nodeproxy-X.Y.Z.tgz", r.archive(v), "nodeproxy-X.Y.Z.tgz", r.archive(v),
	)}
}

// archive is the chart of a version, as make chart writes it.
func (r *run) archive(v version) string {
	r.Helper()
	command := exec.CommandContext(r.ctx, filepath.Join(r.root, "hack", "chart.sh"))
	command.Env = append(os.Environ(), "VERSION="+v.name, "RELEASE=0.0.0", "CHART_OUTPUT="+v.dir, "IMAGE_REGISTRY=")
	if out, err := command.CombinedOutput(); err != nil {
		r.Fatalf("making the chart: %v: %s", err, out)
	}
	return filepath.Join(v.dir, "nodeproxy-0.0.0-dev-"+v.name+".tgz")
}

// installChart installs it by the commands of docs/install.md after the first, which builds it,
// and returns how long they took.
func (r *run) installChart(v version) time.Duration {
	r.Helper()
	const document, heading = "docs/install.md", "## Install with Helm"
	text, err := os.ReadFile(filepath.Join(r.root, document))
	r.must(err)
	blocks := blocksBelow(string(text), heading)
	if len(blocks) != 1 || len(blocks[0].lines) != 3 {
		r.Fatalf("%s: want three commands below %q: %q", document, heading, blocks)
	}
	by, begin := r.chart(document, v), time.Now()
	by.shell(r, by.names.Replace(strings.Join(blocks[0].lines[1:], "\n")))
	return time.Since(begin)
}

func chartInstalled(r *run) {
	took := r.installChart(r.oldest())
	r.remark("Ready after %s", seconds(took))
	r.must(r.programmed())
	r.until(2*time.Minute, "all is well", r.well)
	r.installWorkloads()
	r.background.Go(func() { _, _ = suite.next() }) // takes a while, and is needed next
}

func chartUpgraded(r *run) {
	v, err := suite.next()
	r.must(err)
	for _, archive := range v.archives() {
		r.must(r.cluster.LoadImage(r.ctx, archive))
	}
	r.changeVersion(v, func() { r.chart("docs/upgrade.md", v).step(r, "## With Helm", 0) })
	pods := r.agentPods()
	r.helm("upgrade", "nodeproxy", r.archive(v), "--set", "nodeProxy.spec.settings.mode=NFTables")
	r.until(time.Minute, "each node runs mode NFTables alone", func() error { return r.runs(v1alpha1.ModeNFTables) })
	r.samePods(pods)
}

// chartRolledBack undoes both upgrades at once.
func chartRolledBack(r *run) {
	v, begin := r.oldest(), time.Now()
	r.helm("rollback", "nodeproxy", "1")
	r.until(3*time.Minute, "each agent is of the version", func() error { return r.agentsHave(v.image("nodeproxy-agent")) })
	r.until(time.Minute, "each node runs mode IPTables alone", func() error { return r.runs(v1alpha1.ModeIPTables) })
	r.until(time.Minute, "all is well", r.well)
	r.remark("well after %s", seconds(time.Since(begin)))
}

func (r *run) helm(args ...string) {
	r.Helper()
	guide{document: "helm", directory: r.temp}.shell(r, filepath.Join(r.root, "hack", "tool.sh")+" helm --namespace kube-system "+strings.Join(args, " "))
}

// chartUninstalled uninstalls the chart unprepared, and installs it again: the controllers go, the same
// agents retain the rules.
func chartUninstalled(r *run) {
	pods, rules, written := r.agentPods(), r.settledRules(), r.writings()
	r.helm("uninstall", "nodeproxy")
	r.controllersGone()
	r.agentsLook()
	r.connections(3 * pace)
	r.sameRules(rules)
	r.installChart(r.oldest())
	r.until(2*time.Minute, "all is well", r.well)
	r.sameRules(rules)
	r.nothingWritten(written, r.writings())
	r.samePods(pods)
}

// chartRetain removes everything but the rules, by docs/removal.md.
func chartRetain(r *run) {
	const heading = "## With Retain"
	rules, by := r.settledRules(), r.chart("docs/removal.md", r.oldest())
	by.step(r, heading, 0)
	r.kubectl("-n", system, "delete", "daemonset", "nodeproxy-agent")
	by.step(r, "## Under Helm", 0)
	r.removed()
	r.connections(3 * pace) // of nodeproxy nothing is there that could look
	r.sameRules(rules)
}

// chartCleanup installs the chart over what is left, and removes everything by docs/removal.md.
func chartCleanup(r *run) {
	const heading = "## With Cleanup"
	r.installChart(r.oldest())
	r.until(2*time.Minute, "all is well", r.well)
	by := r.chart("docs/removal.md", r.oldest())
	by.step(r, heading, 0)
	by.step(r, heading, 1)
	for _, node := range r.cluster.Nodes() {
		for mode, has := range r.kernelHas(node) {
			if len(has) > 0 {
				r.Errorf("left on %s of mode %s: %q", node.Name(), mode, has)
			}
		}
	}
	by.step(r, "## Under Helm", 0)
	r.removed()
}

// oldest is the version that is installed first.
func (r *run) oldest() version {
	r.Helper()
	v, err := suite.first()
	r.must(err)
	return v
}
