package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

func apiServerFaults() []fault {
	return []fault{
		{name: "api-server-down", title: "API server down 30 s", repair: 45 * time.Second, inject: func(r *run) { r.withoutAPIServer(func() { r.pass(30 * time.Second) }) }},
		{name: "etcd-restarted", title: "etcd killed and restarted", repair: 45 * time.Second, inject: etcdRestarted},
		{name: "agent-restarted", title: "agents restarted (-9), API server down 20 s", repair: 45 * time.Second, inject: agentRestarted},
	}
}

func rebootFaults() []fault {
	return []fault{{name: "reboot", title: "a node rebooted, API server down", repair: 45 * time.Second, inject: rebooted,
		stay: func(w *world) []load.Target { return w.elsewhere(w.cluster.Node(0)) }}}
}

// withoutAPIServer does something while the API server is down.
func (r *run) withoutAPIServer(what func()) {
	r.must(r.cluster.KillProgram(binaries.APIServer))
	what()
	r.must(r.cluster.StartProgram(r.ctx, binaries.APIServer))
}

func etcdRestarted(r *run) {
	stop := r.change(100 * time.Millisecond)
	r.until(30*time.Second, func(context.Context) error {
		if n := r.changes.Load(); n < 5 {
			return fmt.Errorf("%d changes of endpoints so far", n)
		}
		return nil
	})
	killed := time.Now()
	r.must(r.cluster.KillProgram(binaries.Etcd))
	r.must(r.cluster.StartProgram(r.ctx, binaries.Etcd))
	r.ended = time.Now()
	r.outage = r.ended.Sub(killed)
	stop()
}

// agentRestarted kills all agents and starts them without an API server: what
// they know they know from disk. That they do shows when rules are removed.
func agentRestarted(r *run) {
	r.stored(r.cluster.Nodes()...)
	r.withoutAPIServer(func() {
		for _, node := range r.cluster.Nodes() {
			r.must(r.agents[node.Name()].Kill())
			if r.mode == v1alpha1.ModeNFTables { // while an agent runs, no other program can
				r.removeSpare(node)
			}
			r.must(r.startAgent(node))
		}
		started := time.Now()
		r.pass(7 * time.Second) // they wait 5 s for the API
		for _, node := range r.cluster.Nodes() {
			rules, flushed := r.spareRules(node), started
			if r.mode != v1alpha1.ModeNFTables {
				r.removeSpare(node)
				flushed = time.Now()
			}
			r.until(20*time.Second, func(ctx context.Context) error {
				now, err := r.saved(ctx, node)
				if err != nil {
					return err
				}
				for _, rule := range rules {
					if !slices.Contains(now, rule) {
						return fmt.Errorf("%s does not repair without an API server: missing is %s", node.Name(), rule)
					}
				}
				return nil
			})
			r.remark("%s: removed rules of a Service were back after %.1f s", r.called(node), time.Since(flushed).Seconds())
		}
		r.pass(time.Until(started.Add(20 * time.Second)))
	})
}

// spareRules are the rules of a node for the Service to which nothing connects.
func (r *run) spareRules(node *cluster.Node) []string {
	if r.mode == v1alpha1.ModeNFTables {
		return r.elementsOf(node, "default/spare:tcp")
	}
	_, rules := r.chainOf(node, "default/spare:tcp cluster IP")
	return rules
}

// removeSpare removes them.
func (r *run) removeSpare(node *cluster.Node) {
	if r.mode == v1alpha1.ModeNFTables {
		r.must(removeElements(r.ctx, node, r.spareRules(node)))
		return
	}
	chain, _ := r.chainOf(node, "default/spare:tcp cluster IP")
	_, err := node.Exec(r.ctx, r.program(node, "iptables", ""), "-w", "-t", "nat", "-F", chain)
	r.must(err)
}

// stored waits until nodes have a checkpoint on disk.
func (r *run) stored(nodes ...*cluster.Node) {
	r.Helper()
	for _, node := range nodes {
		r.until(30*time.Second, func(context.Context) error {
			_, err := os.Stat(filepath.Join(r.stateDirectory(node), node.Name()+".checkpoint"))
			return err
		})
	}
}

// chainOf finds the chain that a rule of KUBE-SERVICES with a comment leads to,
// and its rules.
func (r *run) chainOf(node *cluster.Node, comment string) (chain string, rules []string) {
	for _, rule := range r.before[node.Name()] {
		if strings.HasPrefix(rule, "iptables nat -A KUBE-SERVICES ") && strings.Contains(rule, comment) {
			chain = rule[strings.LastIndex(rule, " ")+1:]
		}
	}
	for _, rule := range r.before[node.Name()] {
		if chain != "" && strings.HasPrefix(rule, "iptables nat -A "+chain+" ") {
			rules = append(rules, rule)
		}
	}
	if len(rules) == 0 {
		r.Fatalf("%s has no rules for %s", node.Name(), comment)
	}
	return chain, rules
}

// elsewhere are targets that do not need a node: Services without endpoints on
// it, by the rules of other nodes.
func (w *world) elsewhere(node *cluster.Node) []load.Target {
	var out []load.Target
	for _, t := range w.targets {
		if t.Via != node.Name() && (strings.HasPrefix(t.Name, "stays") || t.Servers != nil && !slices.ContainsFunc(t.Servers, func(s string) bool { return slices.Contains(w.podNames(node), s) })) {
			out = append(out, t)
		}
	}
	return out
}

func (*world) podNames(node *cluster.Node) []string {
	var out []string
	for _, pod := range node.Pods() {
		out = append(out, pod.Name())
	}
	return out
}

// rebooted reboots the first node without an API server. What its rules serve is
// connected to as soon as they are there, and its own pods, which are gone, must
// not be among the endpoints.
func rebooted(r *run) {
	node := r.cluster.Node(0)
	r.stored(node)
	var back atomic.Bool // whether the node's pods run again
	through := r.through(node, &back)
	var reconnect func()
	r.withoutAPIServer(func() {
		r.must(node.Reboot(r.ctx))
		r.must(r.startAgent(node))
		started := time.Now()
		r.until(30*time.Second, func(ctx context.Context) error {
			for _, t := range through {
				ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
				err := t.Try(ctx)
				cancel()
				if err != nil {
					return fmt.Errorf("after the reboot, without an API server: %s: %w", t, err)
				}
			}
			return nil
		})
		r.remark("the node served again %.1f s after its agent started, without the API server", time.Since(started).Seconds())
		r.must(r.load.Add(through))
		r.pass(10 * time.Second)
		// Until the kubelet has reported that the pods of before are gone, the API
		// server reports that they are ready.
		reconnect = r.cut(node, "REJECT", "--reject-with", "tcp-reset")
	})
	for _, pod := range node.Pods() {
		r.must(pod.Delete(r.ctx))
	}
	back.Store(true)
	r.changing = slices.DeleteFunc(r.changing, func(p *cluster.Pod) bool { return p.Node() == node })
	r.must(r.makePods(0, node))
	r.until(time.Minute, r.podsInSlices)
	reconnect()
}

// through are the targets that use the rules of a node, but from none of its
// pods, and until they are back to none of them.
func (r *run) through(node *cluster.Node, back *atomic.Bool) []load.Target {
	gone := r.podNames(node)
	var out []load.Target
	for _, t := range r.targets {
		if t.Via != node.Name() || slices.Contains(gone, t.From.Name()) {
			continue
		}
		t.Check = func(_ time.Time, server string) error {
			if slices.Contains(gone, server) && !back.Load() {
				return fmt.Errorf("%s answers, which ended with the reboot", server)
			}
			return nil
		}
		out = append(out, t)
	}
	return out
}
