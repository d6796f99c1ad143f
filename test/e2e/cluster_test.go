package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
)

// TestCluster is the life of nodeproxy on a cluster on which nothing else has
// ever proxied.
func TestCluster(t *testing.T) {
	rows := clusterRows()
	if !anyChosen(t, rows) {
		return
	}
	w := newWorld(t, kubelets.Options{Nodes: 2, CoreDNS: true, Taints: []corev1.Taint{startupTaint()}})
	w.work(t, rows)
}

func clusterRows() []row {
	return []row{
		{name: "install", title: "install from nothing, with the startup taint", needed: true, do: installed},
		{name: "services", title: "Services of every type", do: everyType},
		{name: "names", title: "names through the cluster IP of kube-dns", do: names},
		{name: "rolling-update", title: "rolling update of a Deployment", targets: rolling, do: rolledOver},
		{name: "scale-to-zero", title: "scale to zero and back", targets: steady, do: scaledToZero},
		{name: "controller-killed", title: "the leading controller killed (-9)", targets: steady, do: controllerKilled},
		{name: "upgrade", title: "controllers and agents upgraded", targets: steady, do: upgraded},
		{name: "downgrade", title: "and back to the version of before", targets: steady, do: wentBack},
		{name: "bad-image", title: "agent's image that cannot be had, and corrected", targets: steady, do: badImage},
		{name: "wrong-api-server", title: "wrong spec.apiServer.endpoints, and corrected", targets: steady, do: wrongAPIServer},
		{name: "nodeproxy-deleted", title: "NodeProxy deleted and created again", targets: steady, do: nodeProxyDeleted},
		{name: "must-gather", title: "hack/must-gather", do: gathered},
		{name: "node-rebooted", title: "node-2 rebooted", targets: withoutNode2, do: nodeRebooted},
		{name: "node-created-again", title: "node-2 lost, and created again under its name", targets: withoutNode2, do: nodeCreatedAgain},
		{name: "retain", title: "removed with Retain", targets: steady, do: removedWithRetain},
		{name: "install-again", title: "installed again", targets: steady, do: installedAgain},
		{name: "modes", title: "mode NFTables, IPTables and NFTables again", targets: steady, pace: modesPace, do: modesChanged},
		{name: "cleanup", title: "removed with Cleanup", do: removedWithCleanup},
		{name: "wrong-api-servers", title: "installed with a wrong API_SERVERS, and corrected", do: wrongAPIServersInitially},
	}
}
