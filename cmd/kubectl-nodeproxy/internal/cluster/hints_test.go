package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
)

// TestURL: a release links to the pages of its tag, a build in between to main.
func TestURL(t *testing.T) {
	for version, want := range map[string]string{
		"v0.1.0": "v0.1.0", "v1.2.3-rc.1": "v1.2.3-rc.1",
		"(devel)": "main", "unknown": "main", "v0.1.0-dirty": "main", "v0.1.0-7-g4fe8332": "main", "4fe8332": "main",
	} {
		if got := Docs(version).URL("removal.md#with-retain"); got != "https://github.com/nodeproxy-io/nodeproxy/blob/"+want+"/docs/removal.md#with-retain" {
			t.Errorf("%s: %s", version, got)
		}
	}
}

func pod(namespace, name string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Labels: map[string]string{agentdeploy.LabelName: name}}}
}

func TestNamespace(t *testing.T) {
	for want, pods := range map[Namespace][]corev1.Pod{
		usualNamespace: {pod("shop", "web")},
		"operators":    {pod("old", agentdeploy.Name), pod("operators", Controller)},
		"agents":       {pod("shop", "web"), pod("agents", agentdeploy.Name)},
	} {
		if got := NamespaceOf(pods); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	}
}

func TestCommands(t *testing.T) {
	for got, want := range map[string]string{
		Namespace("np").Controllers():   "kubectl -n np get pods -l app.kubernetes.io/name=nodeproxy-controller -o wide",
		Namespace("").Agents():          "kubectl get pods -A -l app.kubernetes.io/name=nodeproxy-agent -o wide",
		Namespace("np").Agent("node-1"): "kubectl -n np get pods -l app.kubernetes.io/name=nodeproxy-agent --field-selector spec.nodeName=node-1 -o wide, then kubectl -n np logs POD --tail=20",
		Namespace("").Agent(""):         "kubectl get pods -A -l app.kubernetes.io/name=nodeproxy-agent -o wide, then kubectl -n NAMESPACE logs POD --tail=20",
	} {
		if got != want {
			t.Errorf("%s\nnot\n%s", got, want)
		}
	}
}
