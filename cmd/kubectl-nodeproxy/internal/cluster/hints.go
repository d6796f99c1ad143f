package cluster

import (
	"cmp"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
)

// Docs is the documentation of a release of the plugin, such as v0.1.0. Users may have nothing
// but the plugin and a cluster.
type Docs string

// release matches tags of releases, not versions of builds in between.
var release = regexp.MustCompile(`^v\d+\.\d+\.\d+(-(alpha|beta|rc)[.\d]*)?$`)

// URL returns the address of a page, such as removal.md#with-retain.
func (d Docs) URL(page string) string {
	at := "main"
	if release.MatchString(string(d)) {
		at = string(d)
	}
	return fmt.Sprintf("https://github.com/nodeproxy-io/nodeproxy/blob/%s/docs/%s", at, page)
}

// See returns an action with the page that has the details.
func (d Docs) See(action, page string) string { return action + "; see " + d.URL(page) }

// Controller is the value of label app.kubernetes.io/name of the controller's pods.
const Controller = "nodeproxy-controller"

// usualNamespace is that of install.yaml.
const usualNamespace = "nodeproxy-system"

// Namespace is nodeproxy's namespace; empty: unknown.
type Namespace string

// NamespaceOf finds nodeproxy's namespace by its pods.
func NamespaceOf(pods []corev1.Pod) Namespace {
	for _, name := range []string{Controller, agentdeploy.Name} {
		for _, pod := range pods {
			if pod.Labels[agentdeploy.LabelName] == name {
				return Namespace(pod.Namespace)
			}
		}
	}
	return usualNamespace
}

// Controllers returns the command that lists the controller's pods.
func (n Namespace) Controllers() string { return n.pods(Controller) + " -o wide" }

// Agents returns the command that lists the agents' pods.
func (n Namespace) Agents() string { return n.pods(agentdeploy.Name) + " -o wide" }

// Agent returns the commands that show the agent's pod on a node, or those of all nodes, and
// its log.
func (n Namespace) Agent(node string) string {
	list := n.Agents()
	if node != "" {
		list = fmt.Sprintf("%s --field-selector spec.nodeName=%s -o wide", n.pods(agentdeploy.Name), node)
	}
	return fmt.Sprintf("%s, then kubectl -n %s logs POD --tail=20", list, cmp.Or(n, "NAMESPACE"))
}

func (n Namespace) pods(name string) string {
	where := "get pods -A"
	if n != "" {
		where = fmt.Sprintf("-n %s get pods", n)
	}
	return fmt.Sprintf("kubectl %s -l %s=%s", where, agentdeploy.LabelName, name)
}
