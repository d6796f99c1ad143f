package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/kubelets"
)

// That nothing happens is claimed only of programs that have looked. What follows waits for
// that, by what they count or report themselves: some seconds prove nothing on a
// machine on which they did not get to it.

const (
	agentMetrics      = "http://127.0.0.1:19256/metrics"
	controllerMetrics = "http://127.0.0.1:19257/metrics"
)

// metric reads one with its labels, if it has any, from a program on a node.
func (r *run) metric(node *kubelets.Node, url, name string) (float64, error) {
	text, err := node.Get(r.ctx, url)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", node.Name(), err)
	}
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("%s: %s has no %s", node.Name(), url, name)
}

// agentsLook waits until each agent has gone around again: it checks for other proxies
// every second, whether it writes or waits, and then uses what it knows. The first
// look may have begun before, the second begins anew, and by the third what follows
// from that is under way.
func (r *run) agentsLook() {
	r.Helper()
	const looks = "nodeproxy_agent_other_proxy_checks_total"
	before := map[string]float64{}
	r.until(time.Minute, "each agent has looked three times", func() error {
		for _, node := range r.cluster.Nodes() {
			count, err := r.metric(node, agentMetrics, looks)
			if err != nil {
				return err
			}
			first, known := before[node.Name()]
			if !known {
				first, before[node.Name()] = count, count
			}
			if count < first+3 {
				return fmt.Errorf("the agent of %s has looked %.0f times, %.0f of them before", node.Name(), count, first)
			}
		}
		return nil
	})
}

// agentsMissKinds waits until each agent has found that it cannot read any of the
// kinds.
func (r *run) agentsMissKinds() {
	r.Helper()
	r.until(time.Minute, "each agent misses the kinds", func() error {
		for _, node := range r.cluster.Nodes() {
			for _, resource := range []string{"nodeproxies", "nodeproxyrules", "serviceproxyrules"} {
				failing, err := r.metric(node, agentMetrics, fmt.Sprintf("nodeproxy_agent_watch_failing{resource=%q}", resource))
				if err != nil {
					return err
				}
				if failing != 1 {
					return fmt.Errorf("the agent of %s still reads %s", node.Name(), resource)
				}
			}
		}
		return nil
	})
}

// connections waits until so many connections more have been made. What is to be seen
// is what becomes of them, so their number counts and not how long they take.
func (r *run) connections(count int) {
	r.Helper()
	since := time.Now()
	r.until(time.Minute, "connections are made", func() error {
		if tried := r.load.Tried(since, time.Now()); tried < count {
			return fmt.Errorf("%d of %d", tried, count)
		}
		return nil
	})
}

// seen waits until the kubelet's events of each pod with a label report something so
// often.
func (r *run) seen(what, label, reason string, often int) {
	r.Helper()
	r.until(time.Minute, what, func() error {
		pods := strings.Fields(r.kubectl("-n", system, "get", "pods", "-l", label, "-o", "jsonpath={.items[*].metadata.name}"))
		if len(pods) == 0 {
			return fmt.Errorf("there is no pod %s", label)
		}
		for _, name := range pods {
			if err := r.reported(name, reason, often); err != nil {
				return err
			}
		}
		return nil
	})
}

// reported returns nil when events report it of a pod so often.
func (r *run) reported(pod, reason string, often int) error {
	counts := r.kubectl("-n", system, "get", "events", "--field-selector", "involvedObject.name="+pod+",reason="+reason, "-o", "jsonpath={.items[*].count}")
	sum := 0
	for text := range strings.FieldsSeq(counts) {
		count, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("events of pod %s: %w", pod, err)
		}
		sum += count
	}
	if sum < often {
		return fmt.Errorf("pod %s: %d of %d events %s", pod, sum, often, reason)
	}
	return nil
}
