package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
)

// patch changes the NodeProxy.
func (r *run) patch(text string) {
	r.Helper()
	r.kubectl("patch", "nodeproxy", "cluster", "--type=merge", "-p", text)
}

// notReady returns nil when NodeProxy reports that it is not ready, with all of the
// texts in its reason or message.
func (r *run) notReady(texts ...string) error {
	np := &v1alpha1.NodeProxy{}
	if err := r.cluster.Client().Get(r.ctx, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np); err != nil {
		return err
	}
	c := meta.FindStatusCondition(np.Status.Conditions, v1alpha1.ConditionReady)
	if c == nil || c.Status != "False" {
		return fmt.Errorf("NodeProxy is not reported to be unready: %+v", c)
	}
	for _, text := range texts {
		if reported := c.Reason + ": " + c.Message; !strings.Contains(reported, text) {
			return fmt.Errorf("NodeProxy does not state %q but %q", text, reported)
		}
	}
	return nil
}

// badImage names an image that cannot be had: the update stops at its first node,
// whose rules stay. With the right image it goes on.
func badImage(r *run) {
	before, rules := r.agentPods(), r.settledRules()
	r.patch(`{"spec":{"agent":{"image":"nodeproxy.test/no-such-agent:1"}}}`)
	took := r.until(time.Minute, "NodeProxy reports the pod's reason", func() error {
		return r.notReady(v1alpha1.ReasonAgentPodsFailing, "no-such-agent:1", "Pull")
	})
	r.remark("reported after %s", seconds(took))
	r.updateStays(before)
	after, touched := r.agentPods(), 0
	for node, pod := range before {
		if now, ok := after[node]; !ok || now.UID != pod.UID {
			touched++
		} else if !ready(&now) {
			r.Errorf("the agent of %s, which the update has not reached, is not ready", node)
		}
	}
	if touched != 1 {
		r.Errorf("the update has touched %d nodes, want 1", touched)
	}
	r.sameRules(rules)
	r.patch(`{"spec":{"agent":{"image":null}}}`)
	took = r.until(2*time.Minute, "all is well", r.well)
	r.remark("well again %s after it was corrected", seconds(took))
}

// updateStays waits until the DaemonSet's controller has had reason to go on: the kubelet
// has tried again to get the image. Each try that fails changes the pod, and the
// controller then checks all of its pods.
func (r *run) updateStays(before map[string]corev1.Pod) {
	r.Helper()
	r.until(2*time.Minute, "the kubelet has tried again to get the image", func() error {
		for node, pod := range r.agentPods() {
			if pod.UID != before[node].UID {
				return r.reported(pod.Name, "Pulling", 2)
			}
		}
		return errors.New("no agent has another pod")
	})
	r.until(time.Minute, "the DaemonSet is at one new pod", func() error {
		const about = "{.metadata.generation} {.status.observedGeneration} {.status.updatedNumberScheduled}"
		now := r.kubectl("-n", system, "get", "daemonset", "nodeproxy-agent", "-o", "jsonpath="+about)
		if f := strings.Fields(now); len(f) != 3 || f[0] != f[1] || f[2] != "1" {
			return fmt.Errorf("its generation, the observed one and the number of new pods: %s", now)
		}
		return nil
	})
}

// sameRules fails if rules differ from those of before.
func (r *run) sameRules(before map[string][]string) {
	r.Helper()
	if diff := cmp.Diff(before, r.allRules()); diff != "" {
		r.Errorf("the nodes' rules are not as before (-before +now):\n%s", diff)
	}
}

// wrongAPIServer names API servers: one address rejects, the other does not answer.
func wrongAPIServer(r *run) {
	pods, rules, known := r.agentPods(), r.settledRules(), r.apiServers()
	r.patch(`{"spec":{"apiServer":{"endpoints":["https://172.20.0.1:1","https://172.20.0.77:6443"]}}}`)
	took := r.until(30*time.Second, "NodeProxy reports it", func() error {
		return r.notReady(v1alpha1.ReasonAPIServerUnreachable, "https://172.20.0.1:1: ", "https://172.20.0.77:6443: ")
	})
	r.remark("reported after %s", seconds(took))
	r.apiServersTried()
	r.sameRules(rules)
	if now := r.apiServers(); now != known {
		r.Errorf("the programs have the API servers %q, before %q", now, known)
	}
	r.patch(`{"spec":{"apiServer":null}}`)
	r.until(time.Minute, "all is well", r.well)
	r.samePods(pods)
}

// apiServersTried waits until the controller that leads has come to an end with trying
// API servers of which none answers.
func (r *run) apiServersTried() {
	r.Helper()
	leader, _, _ := strings.Cut(r.leader(), "_")
	at := slices.IndexFunc(r.cluster.Nodes(), func(n *kubelets.Node) bool { return n.Name() == leader })
	if at < 0 {
		r.Fatalf("%q leads, which is no node", leader)
	}
	tries := func() (float64, error) {
		return r.metric(r.cluster.Node(at), controllerMetrics, `controller_runtime_reconcile_total{controller="apiservers",result="requeue_after"}`)
	}
	before, err := tries()
	r.must(err)
	r.until(time.Minute, "the controller has tried the API servers", func() error {
		now, err := tries()
		if err == nil && now <= before {
			err = fmt.Errorf("it has tried %.0f times, as before", now)
		}
		return err
	})
}

// wrongAPIServersInitially installs nodeproxy with an address at which no API server
// is, on a cluster where nothing proxies, so that no program knows any. Nothing has
// to be started again when that is corrected.
func wrongAPIServersInitially(r *run) {
	const wrong = "https://172.20.0.1:1"
	if r.kubectl("get", "namespace", system, "--ignore-not-found", "-o", "name") != "" {
		removedWithCleanup(r) // the row before is not run
	}
	manifest, err := os.ReadFile(r.installed().manifest())
	r.must(err)
	path := filepath.Join(r.temp, "wrong.yaml")
	r.must(os.WriteFile(path, bytes.ReplaceAll(manifest, []byte(cluster.APIServerURL), []byte(wrong)), 0o600))
	r.kubectl("apply", "--server-side", "-f", path)
	r.kubectl("apply", "-f", filepath.Join(r.root, sample))
	const label = "app.kubernetes.io/name=nodeproxy-controller"
	r.until(time.Minute, "the controllers run", func() error {
		if running := r.kubectl("-n", system, "get", "pods", "-l", label, "-o", "jsonpath={.items[*].status.phase}"); running != "Running Running" {
			return fmt.Errorf("they are %q", running)
		}
		return nil
	})
	took := r.until(30*time.Second, "each controller reports it", func() error {
		for pod := range strings.FieldsSeq(r.kubectl("-n", system, "get", "pods", "-l", label, "-o", "name")) {
			log := r.kubectl("-n", system, "logs", pod)
			if !strings.Contains(log, "No API server answers") || !strings.Contains(log, wrong) {
				return fmt.Errorf("%s reports: %s", pod, log)
			}
		}
		return nil
	})
	r.remark("reported %s after they ran", seconds(took))
	r.seen("the kubelets have asked each controller twice whether it is ready", label, "Unhealthy", 2)
	controllers, err := r.pods(system, label)
	r.must(err)
	for node, pod := range controllers {
		if ready(&pod) {
			r.Errorf("the controller of %s is ready", node)
		}
	}
	r.kubectl("-n", system, "patch", "configmap", "nodeproxy-api-servers", "--type=merge", "-p", `{"data":{"endpoints":"`+cluster.APIServerURL+`"}}`)
	took = r.until(2*time.Minute, "all is well", r.well)
	r.remark("all well %s after it was corrected", seconds(took))
	after, err := r.pods(system, label)
	r.must(err)
	for node, pod := range after {
		if pod.UID != controllers[node].UID || pod.Status.ContainerStatuses[0].RestartCount > 0 {
			r.Errorf("the controller of %s has been started again", node)
		}
	}
}

// apiServers is what the programs are given.
func (r *run) apiServers() string {
	r.Helper()
	return r.kubectl("-n", system, "get", "configmap", "nodeproxy-api-servers", "-o", "jsonpath={.data.endpoints}")
}

// samePods fails if an agent's pod is another one, or has been started again.
func (r *run) samePods(before map[string]corev1.Pod) {
	r.Helper()
	after := r.agentPods()
	for node, pod := range before {
		now := after[node]
		if now.UID != pod.UID {
			r.Errorf("the agent of %s has another pod", node)
		} else if was, is := pod.Status.ContainerStatuses[0].RestartCount, now.Status.ContainerStatuses[0].RestartCount; was != is {
			r.Errorf("the agent of %s has been started again: %d restarts, before %d", node, is, was)
		}
	}
}
