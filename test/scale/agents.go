package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

const (
	// reportPause is the least time between two reports of an agent: agent/status.
	reportPause = 5 * time.Second
	// reporters write reports at a time, as many agents do.
	reporters = 32
)

// startLeases renews the Leases of all nodes with the code of agents. Applied is the newest version
// that they have received.
func startLeases(ctx context.Context, c *cluster.Cluster, nodes int, applied func() string) error {
	config, err := agentConfig(c)
	if err != nil {
		return err
	}
	client, err := apiclient.New(config)
	if err != nil {
		return err
	}
	metrics := apiclient.NewMetrics(prometheus.NewRegistry())
	for i := range nodes {
		go apiclient.NewLeaseRenewer(apiclient.LeaseOptions{
			Client: client, Clock: clock.RealClock{}, Log: logr.Discard(), Namespace: install.Namespace, Node: nodeName(i),
			Started: time.Now(), Applied: applied, Metrics: metrics,
		}).Run(ctx)
	}
	return nil
}

// reports writes the status of all nodes when their rules change, as agents do: at once, but then not
// again for some seconds.
type reports struct {
	client *apiclient.Client
	failed func(error)
	due    chan string

	mu        sync.Mutex
	nodes     map[string]*reported // guarded by mu
	revisions map[string]string    // guarded by mu: of the settings that nodes have reported
}

// reported is what is known about the rules of a node.
type reported struct {
	rules   v1alpha1.NodeProxyRules
	last    time.Time
	planned bool
}

// startReports follows the rules of all nodes.
func startReports(ctx context.Context, c *cluster.Cluster, failed func(error)) (*reports, error) {
	config, err := agentConfig(c)
	if err != nil {
		return nil, err
	}
	r := &reports{failed: failed, due: make(chan string, 1<<16), nodes: map[string]*reported{}, revisions: map[string]string{}}
	if r.client, err = apiclient.New(config); err != nil {
		return nil, err
	}
	for range reporters {
		go r.write(ctx)
	}
	following := ctx // Until's ends
	watcher, err := newStream(c.RESTConfig(), failed)
	if err != nil {
		return nil, err
	}
	// Without a version, the watch begins with all objects. The kind may be too new for it.
	return r, install.Until(ctx, patience, func(context.Context) error {
		return watcher.watch(following, rulesPath+"nodeproxyrules", "", "", asJSON(), func(event []byte) { r.seen(following, event) })
	})
}

// seen plans a report if the rules of a node differ from what was reported.
func (r *reports) seen(ctx context.Context, event []byte) {
	var e struct {
		Type   string
		Object v1alpha1.NodeProxyRules
	}
	if err := json.Unmarshal(event, &e); err != nil {
		r.failed(fmt.Errorf("rules of a node: %w", err))
		return
	}
	if e.Type != "ADDED" && e.Type != "MODIFIED" {
		return
	}
	name := e.Object.Name
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revisions[name] = e.Object.Status.SettingsRevision
	if e.Object.Status.ObservedGeneration == e.Object.Generation {
		return
	}
	n := r.nodes[name]
	if n == nil {
		n = &reported{}
		r.nodes[name] = n
	}
	n.rules = e.Object
	if n.planned {
		return
	}
	n.planned = true
	time.AfterFunc(max(0, time.Until(n.last.Add(reportPause))), func() {
		select {
		case r.due <- name:
		case <-ctx.Done():
		}
	})
}

// revision is that of the settings that a node has reported.
func (r *reports) revision(node string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.revisions[node]
}

// with returns how many nodes have reported a revision last.
func (r *reports) with(revision string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, its := range r.revisions {
		if its == revision {
			n++
		}
	}
	return n
}

func (r *reports) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case name := <-r.due:
			r.mu.Lock()
			n := r.nodes[name]
			n.planned, n.last = false, time.Now()
			rules := n.rules.DeepCopy()
			r.mu.Unlock()
			status := report(rules)
			if _, err := r.client.WriteStatus(ctx, rules, status); err != nil && ctx.Err() == nil {
				r.failed(fmt.Errorf("reporting for %s: %w", name, err))
			}
		}
	}
}

// report is the status of a node without problems.
func report(rules *v1alpha1.NodeProxyRules) *v1alpha1.NodeProxyRulesStatus {
	now := metav1.NewTime(time.Now().UTC().Truncate(time.Second))
	local := int32(0)
	for _, s := range rules.Spec.LocalEndpoints {
		for _, p := range s.Ports {
			local += int32(len(p.Endpoints))
		}
	}
	condition := func(kind, reason, message string) metav1.Condition {
		return metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: rules.Generation,
			LastTransitionTime: rules.CreationTimestamp,
		}
	}
	return &v1alpha1.NodeProxyRulesStatus{
		ObservedGeneration: rules.Generation, SettingsRevision: rules.Spec.SettingsRevision, Mode: *rules.Spec.Settings.Mode,
		Agent:    &v1alpha1.AgentReport{Version: "scale", Kernel: "6.12.0", FormatVersions: v1alpha1.FormatVersions(), StartTime: rules.CreationTimestamp},
		Services: 10_000, Endpoints: 100_000, LocalEndpoints: local, LastSync: &v1alpha1.SyncReport{Time: now},
		Conditions: []metav1.Condition{
			condition(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "The kernel supports all settings."),
			condition(v1alpha1.ConditionProgrammed, v1alpha1.ReasonProgrammed, "The kernel has the desired rules of all Services."),
		},
	}
}
