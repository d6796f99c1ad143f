package e2e

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// rolledOver updates a Deployment whose pods all are replaced, one after the other.
func rolledOver(r *run) {
	before := r.names("rolling")
	r.kubectl("-n", shop, "set", "env", "deployment/rolling", "ROUND=2")
	r.kubectl("-n", shop, "rollout", "status", "deployment/rolling", "--timeout=2m")
	r.until(time.Minute, "the old pods are gone", func() error {
		for _, name := range r.names("rolling") {
			if slices.Contains(before, name) {
				return fmt.Errorf("pod %s is still there", name)
			}
		}
		return nil
	})
	r.remark("%d pods replaced, readiness and 5 s of draining", len(before))
}

// names are those of all pods of an app, also of those that end.
func (r *run) names(app string) []string {
	r.Helper()
	return strings.Fields(r.kubectl("-n", shop, "get", "pods", "-l", "app="+app, "-o", "jsonpath={.items[*].metadata.name}"))
}

// scaledToZero takes all pods of a Service away: connections are rejected at once.
// Then it gets pods again.
func scaledToZero(r *run) {
	address := net.JoinHostPort(r.service("rolling").Spec.ClusterIP, "80")
	places := r.clients()
	for _, node := range r.cluster.Nodes() {
		places["the node "+node.Name()] = node.Place
	}
	r.kubectl("-n", shop, "scale", "deployment/rolling", "--replicas=0")
	r.until(time.Minute, "no pod is left", func() error {
		if names := r.names("rolling"); len(names) > 0 {
			return fmt.Errorf("pods are left: %q", names)
		}
		return nil
	})
	took := r.everywhere(10*time.Second, "connections are rejected", places, address, func(err error) error {
		if !errors.Is(err, cluster.ErrRejected) {
			return fmt.Errorf("not rejected: %w", err)
		}
		return nil
	})
	r.remark("rejected everywhere %s after the last pod", seconds(took))
	r.kubectl("-n", shop, "scale", "deployment/rolling", "--replicas=3")
	r.kubectl("-n", shop, "rollout", "status", "deployment/rolling", "--timeout=2m")
	took = r.everywhere(10*time.Second, "it answers again", places, address, func(err error) error { return err })
	r.remark("answers everywhere %s after its pods are ready", seconds(took))
}

// everywhere waits until a connection from each place passes a check, and returns how long that took.
// Those made after that must pass it, too.
func (r *run) everywhere(limit time.Duration, what string, places map[string]*cluster.Place, address string, check func(err error) error) time.Duration {
	r.Helper()
	connect := func(from *cluster.Place) error {
		_, err := from.Dial(r.ctx, "tcp", address)
		if err = check(err); err != nil {
			return fmt.Errorf("%s, from %s: %w", what, from.Name(), err)
		}
		return nil
	}
	begin := time.Now()
	for _, from := range places {
		r.until(limit-time.Since(begin), what, func() error { return connect(from) })
	}
	took := time.Since(begin)
	for _, from := range places {
		r.tried++
		if err := connect(from); err != nil {
			r.failed++
			load.Lost(r, "%v", err)
		}
	}
	return took
}

// controllerKilled kills the controller that leads, and makes a Service, which
// the other one has to render.
func controllerKilled(r *run) {
	leader := r.leader()
	node, _, _ := strings.Cut(leader, "_")
	controllers, err := r.pods(system, "app.kubernetes.io/name=nodeproxy-controller")
	r.must(err)
	pid, err := r.cluster.PIDOf(r.ctx, system, controllers[node].Name)
	r.must(err)
	r.must(syscall.Kill(pid, syscall.SIGKILL))
	killed := time.Now()
	r.kubectl("-n", shop, "create", "service", "clusterip", "after-kill", "--tcp=80:8080")
	r.kubectl("-n", shop, "set", "selector", "service/after-kill", "app=web")
	address := net.JoinHostPort(r.service("after-kill").Spec.ClusterIP, "80")
	r.everywhere(time.Minute, "a Service that was made after that answers", r.clients(), address, func(err error) error { return err })
	r.remark("a Service made then answers %s after the kill", seconds(time.Since(killed)))
	r.until(time.Minute, "another controller leads", func() error {
		if r.leader() == leader {
			return fmt.Errorf("%s still does", leader)
		}
		return nil
	})
	r.until(2*time.Minute, "all is well", r.well)
	r.kubectl("-n", shop, "delete", "service", "after-kill")
}

// leader is who holds the controllers' Lease: its node, "_" and a random part.
func (r *run) leader() string {
	r.Helper()
	lease := &coordinationv1.Lease{}
	r.must(r.cluster.Client().Get(r.ctx, client.ObjectKey{Namespace: system, Name: "nodeproxy-controller"}, lease))
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// upgraded changes to another version by docs/upgrade.md: first the controllers
// and then the agents are replaced, one node at a time.
func upgraded(r *run) {
	newer, err := suite.next()
	r.must(err)
	for _, archive := range newer.archives() {
		r.must(r.cluster.LoadImage(r.ctx, archive))
	}
	r.changeVersion(newer, func() { r.document("docs/upgrade.md", newer).step(r, "# Upgrading nodeproxy", 0) })
}

// wentBack goes back to the version of before, by docs/upgrade.md.
func wentBack(r *run) {
	older := r.installed()
	r.changeVersion(older, func() { r.document("docs/upgrade.md", older).step(r, "## Going back", 0) })
}

// changeVersion does what replaces controllers and agents, waits until all are of
// a version and all is well, and looks whether rules have changed.
func (r *run) changeVersion(v version, change func()) {
	r.Helper()
	rules := r.settledRules()
	begin := time.Now()
	change()
	r.kubectl("-n", system, "rollout", "status", "deployment/nodeproxy-controller", "--timeout=3m")
	r.until(3*time.Minute, "each agent is of the version", func() error { return r.agentsHave(v.image("nodeproxy-agent")) })
	r.until(time.Minute, "all is well", r.well)
	r.remark("all replaced in %s", seconds(time.Since(begin)))
	for _, what := range []string{"nodeproxyrules -o jsonpath={.items[*].status.agent.version}", "nodeproxy cluster -o jsonpath={.status.version}"} {
		for reported := range strings.FieldsSeq(r.kubectl(append([]string{"get"}, strings.Fields(what)...)...)) {
			if reported != v.name {
				r.Errorf("kubectl get %s: %s, want %s", what, reported, v.name)
			}
		}
	}
	r.sameRules(rules)
}

// agentsHave returns nil when the agent of each node is ready and has an image.
func (r *run) agentsHave(image string) error {
	pods, err := r.pods(system, "app.kubernetes.io/name=nodeproxy-agent")
	if err != nil {
		return err
	}
	for _, node := range r.cluster.Nodes() {
		pod, ok := pods[node.Name()]
		if !ok || pod.Spec.Containers[0].Image != image {
			return fmt.Errorf("%s has no agent of image %s", node.Name(), image)
		}
		if !ready(&pod) {
			return fmt.Errorf("the agent of %s is not ready", node.Name())
		}
	}
	return nil
}

func ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
