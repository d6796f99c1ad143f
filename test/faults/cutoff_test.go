package faults

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

func cutOffFaults() []fault {
	return []fault{
		{name: "cut-off", title: "a node cut off from the API server for 60 s", repair: 60 * time.Second, inject: cutOff},
	}
}

func permissionsFaults() []fault {
	return []fault{
		{name: "permissions-revoked", title: "the agents' permissions revoked for 60 s", repair: 60 * time.Second, inject: permissionsRevoked},
	}
}

// cutOff drops what comes from a node to the API server, in silence.
func cutOff(r *run) {
	reconnect := r.cut(r.cluster.Node(0), "DROP")
	stop := r.change(500 * time.Millisecond)
	r.pass(60 * time.Second)
	stop()
	r.met(r.cluster.Node(0))
	reconnect()
}

// met fails unless a packet has met the rule of cut.
func (r *run) met(node *cluster.Node) {
	// What is listed first is the rule: its counters of packets and bytes, then the rule.
	listed, err := r.cluster.ControlPlane().Exec(r.ctx, "iptables-nft", "-w", "-nvxL", "INPUT", "1")
	r.must(err)
	if counters := strings.Fields(listed); len(counters) == 0 || counters[0] == "0" {
		r.Errorf("%s was not cut off, no packet has met the rule: %s", node.Name(), listed)
	}
}

// cut lets nothing through from a node to the API server, until the returned
// function is called.
func (r *run) cut(node *cluster.Node, how ...string) (reconnect func()) {
	rule := func(do string) {
		args := append([]string{"-w", do, "INPUT", "-s", node.Address(), "-p", "tcp", "--dport", "6443", "-j"}, how...)
		_, err := r.cluster.ControlPlane().Exec(r.ctx, "iptables-nft", args...)
		r.must(err)
	}
	rule("-I")
	return func() { rule("-D") }
}

// permissionsRevoked takes the agents' ClusterRole away from them.
func permissionsRevoked(r *run) {
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "nodeproxy-agent"}}
	r.must(r.cluster.Client().Delete(r.ctx, binding))
	stop := r.change(500 * time.Millisecond)
	r.pass(30 * time.Second)
	if out, err := r.cluster.Kubectl(r.ctx, "auth", "can-i", "list", "serviceproxyrules", "--as", "nodeproxy-agent"); err == nil || !strings.HasPrefix(out, "no") {
		r.Errorf("the agents still have their permissions: %s %v", out, err)
	}
	// An agent that starts meanwhile may read nothing at all.
	node := r.cluster.Node(0)
	r.must(r.agents[node.Name()].Kill())
	r.must(r.startAgent(node))
	started := time.Now()
	r.until(30*time.Second, r.agentsMiss([]*cluster.Node{node}, "nodeproxies", "nodeproxyrules", "serviceproxyrules"))
	r.pass(time.Until(started.Add(30 * time.Second)))
	stop()
	r.must(r.nodeproxy.Prepare(r.ctx))
}

// crds is the directory of the CRDs.
func (w *world) crds() string { return filepath.Join(w.nodeproxy.Config, "crd", "bases") }

// gone returns an error while kubectl finds objects of a kind.
func (r *run) gone(kind string) error {
	out, err := r.cluster.Kubectl(r.ctx, "get", kind, "--no-headers", "--ignore-not-found")
	if err == nil && strings.TrimSpace(out) != "" {
		return fmt.Errorf("there still are %s:\n%s", kind, out)
	}
	return nil
}
