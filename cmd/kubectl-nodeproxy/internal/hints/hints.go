// Package hints says where to look on: in the documentation, and at nodeproxy's pods.
// Who reads them has the plugin and a cluster, and nothing else.
package hints

import (
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
)

// Docs are the documents of a release of the plugin, such as v0.1.0.
type Docs string

// release is how tags of releases look. What is built in between has others.
var release = regexp.MustCompile(`^v\d+\.\d+\.\d+(-(alpha|beta|rc)[.\d]*)?$`)

// URL is where a page, such as removal.md#with-retain, is to be read.
func (d Docs) URL(page string) string {
	at := "main"
	if release.MatchString(string(d)) {
		at = string(d)
	}
	return fmt.Sprintf("https://github.com/nodeproxy-io/nodeproxy/blob/%s/docs/%s", at, page)
}

// See is what to do, with the page that says more.
func (d Docs) See(action, page string) string { return action + "; see " + d.URL(page) }

// Controller is what the controller's pods are called by the label that those of the
// agents have, too.
const Controller = "nodeproxy-controller"

const usual = "nodeproxy-system"

// Namespace is the one in which nodeproxy runs; empty: it is not known.
type Namespace string

// NamespaceOf finds the namespace in which nodeproxy runs by its pods. Where there are
// none it is the one that install.yaml makes.
func NamespaceOf(pods []corev1.Pod) Namespace {
	for _, name := range []string{Controller, agentdeploy.Name} {
		for i := range pods {
			if pods[i].Labels[agentdeploy.LabelName] == name {
				return Namespace(pods[i].Namespace)
			}
		}
	}
	return usual
}

// Controllers is the command that lists the controller's pods.
func (n Namespace) Controllers() string { return n.pods(Controller) + " -o wide" }

// Agents is the command that lists the agents' pods.
func (n Namespace) Agents() string { return n.pods(agentdeploy.Name) + " -o wide" }

// Agent are the commands that show the agent's pod on a node, and its log. Without a
// node the first lists all of them.
func (n Namespace) Agent(node string) string {
	list := n.Agents()
	if node != "" {
		list = fmt.Sprintf("%s --field-selector spec.nodeName=%s -o wide", n.pods(agentdeploy.Name), node)
	}
	in := string(n)
	if in == "" {
		in = "NAMESPACE"
	}
	return fmt.Sprintf("%s, then kubectl -n %s logs POD --tail=20", list, in)
}

func (n Namespace) pods(name string) string {
	where := "get pods -A"
	if n != "" {
		where = fmt.Sprintf("-n %s get pods", n)
	}
	return fmt.Sprintf("kubectl %s -l %s=%s", where, agentdeploy.LabelName, name)
}
