package main

import (
	"context"
	_ "embed" // for the policies
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/rollouts"
)

//go:embed edge-pool.yaml
var edgePoolYAML string

//go:embed slow-sync.yaml
var slowSyncYAML string

//go:embed no-node-ports.yaml
var noNodePortsYAML string

// Names of the policies, and of the nodes of the pool, in the order in which changes
// come to them.
const (
	edgePool    = "edge-pool"
	slowSync    = "slow-sync"
	noNodePorts = "no-node-ports"
)

var pool = []string{"node-2", "node-3"}

// nodePolicies shows how settings for a pool of nodes go from node to node.
func (d *demo) nodePolicies(ctx context.Context) error {
	d.report.section("A policy for a pool of nodes")
	if !d.report.check("kubectl apply -f test/demo/edge-pool.yaml, paused: nothing changes", func() (string, error) {
		_, err := d.cluster.Kubectl(ctx, append(append([]string{"label", "nodes"}, pool...), "pool=edge")...)
		if err == nil {
			err = d.apply(ctx, "edge-pool.yaml", edgePoolYAML)
		}
		if err != nil {
			return "", err
		}
		saw, err := d.policyReports(ctx, edgePool, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused)
		return saw, errors.Join(err, d.masqueraded(ctx, false))
	}) {
		return nil // the rest would prove nothing
	}
	d.report.check("resumed, it goes from node to node: no connection fails", func() (string, error) {
		return d.rolledOut(ctx, func() error {
			_, err := d.cluster.Kubectl(ctx, "patch", "nodeproxypolicy", edgePool, "--type", "merge", "--patch", `{"spec":{"rollout":{"paused":false}}}`)
			return err
		}, func(ctx context.Context) error { return rollouts.Applied(ctx, d.cluster.Client(), edgePool, 2) })
	})
	d.printed(ctx, "nodeproxypolicies", 1, "READY")
	d.report.check("masquerade.all: the server sees node-3, and not its pod", func() (string, error) {
		return "of node-1 it sees the pod", d.masqueraded(ctx, true)
	})
	d.rejectedPolicies(ctx)
	d.report.check("kubectl delete nodeproxypolicies --all: the nodes go back in turn", func() (string, error) {
		saw, err := d.rolledOut(ctx, func() error {
			_, err := d.cluster.Kubectl(ctx, "delete", "nodeproxypolicies", "--all")
			return err
		}, d.withoutPolicies)
		return saw, errors.Join(err, d.masqueraded(ctx, false))
	})
	return nil
}

// rejectedPolicies shows policies that make no sense: they change nothing.
func (d *demo) rejectedPolicies(ctx context.Context) {
	d.report.check("an unknown IPVS scheduler: invalid for the API server", func() (string, error) {
		_, err := d.cluster.Kubectl(ctx, "patch", "nodeproxypolicy", edgePool, "--type", "merge", "--patch", `{"spec":{"settings":{"ipvs":{"scheduler":"fastest"}}}}`)
		if err == nil {
			return "", errors.New("it is accepted")
		}
		_, message, found := strings.Cut(err.Error(), "settings.ipvs.scheduler")
		if !found {
			return "", err
		}
		return "spec.settings.ipvs.scheduler" + strings.TrimSpace(message), nil
	})
	d.report.check("kubectl apply -f test/demo/slow-sync.yaml: with the NodeProxy it makes no sense", func() (string, error) {
		before, err := d.revisions(ctx)
		if err == nil {
			err = d.apply(ctx, "slow-sync.yaml", slowSyncYAML)
		}
		if err != nil {
			return "", err
		}
		saw, err := d.policyReports(ctx, slowSync, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidResult)
		if err != nil {
			return "", err
		}
		after, err := d.revisions(ctx)
		if err == nil && !slices.Equal(before, after) {
			err = fmt.Errorf("the nodes have changed: they had %q, now %q", before, after)
		}
		return saw, err
	})
}

// policySays waits until a condition of a policy has a status and a reason, and
// returns what it reports.
func (d *demo) policyReports(ctx context.Context, name, condition string, status metav1.ConditionStatus, reason string) (string, error) {
	saw := ""
	err := install.Until(ctx, programmingLimit, func(ctx context.Context) error {
		policy := &v1alpha1.NodeProxyPolicy{}
		if err := d.cluster.Client().Get(ctx, client.ObjectKey{Name: name}, policy); err != nil {
			return err
		}
		c := meta.FindStatusCondition(policy.Status.Conditions, condition)
		if c == nil || c.Status != status || c.Reason != reason || c.ObservedGeneration != policy.Generation {
			return fmt.Errorf("%s of %s is %+v, want %s, %s", condition, name, c, status, reason)
		}
		saw = fmt.Sprintf("%s: %s", c.Reason, c.Message)
		return nil
	})
	return saw, err
}

// rolledOut makes a change and waits until it is done, while connections are made. It
// wants that the nodes of the pool have it one after the other, and returns how it
// went.
func (d *demo) rolledOut(ctx context.Context, change func() error, done func(ctx context.Context) error) (string, error) {
	follow, err := rollouts.Follow(ctx, d.cluster)
	if err != nil {
		return "", err
	}
	defer follow.End()
	stop := d.watchAll(ctx)
	err = change()
	if err == nil {
		err = install.Until(ctx, programmingLimit, done)
	}
	made, watchErr := stop()
	if err := errors.Join(err, watchErr); err != nil {
		return "", err
	}
	story, err := follow.Story(ctx)
	if err != nil {
		return "", err
	}
	if order := story.Order(); !slices.Equal(order, pool) {
		err = fmt.Errorf("it came to %q, want %q", order, pool)
	}
	return fmt.Sprintf("%s; %d connections", strings.Join(pool, ", then "), made), errors.Join(err, story.OneByOne())
}

// withoutPolicies returns nil when no policy shapes any node, and all have the desired
// state.
func (d *demo) withoutPolicies(ctx context.Context) error {
	list := &v1alpha1.NodeProxyRulesList{}
	if err := d.cluster.Client().List(ctx, list); err != nil {
		return err
	}
	for _, rules := range list.Items {
		if len(rules.Spec.Policies) > 0 || rules.Spec.SettingsRevision != rules.Status.SettingsRevision {
			return fmt.Errorf("%s has settings %s of policies %q, and has applied %s", rules.Name, rules.Spec.SettingsRevision, rules.Spec.Policies, rules.Status.SettingsRevision)
		}
	}
	return d.programmed(ctx)
}

// revisions are those of the settings of each node.
func (d *demo) revisions(ctx context.Context) (out []string, err error) {
	list := &v1alpha1.NodeProxyRulesList{}
	if err := d.cluster.Client().List(ctx, list); err != nil {
		return nil, err
	}
	for _, rules := range list.Items {
		out = append(out, rules.Name+" "+rules.Spec.SettingsRevision)
	}
	slices.Sort(out)
	return out, nil
}

// masqueraded wants that a server on node-2 sees the pod of node-3 itself, or that
// node; and in any case the pod of node-1.
func (d *demo) masqueraded(ctx context.Context, want bool) error {
	inPool := d.visitor.IP()
	if want {
		inPool = d.cluster.Node(2).Address()
	}
	var errs []error
	for _, client := range []struct {
		from *cluster.Place
		seen string
	}{{d.visitor.Place, inPool}, {d.web[0].Place, d.web[0].IP()}} {
		answer, err := client.from.Dial(oneTry(ctx), "tcp", d.clusterAddress("single"))
		if err == nil && answer.Client.Addr().String() != client.seen {
			err = fmt.Errorf("from %s: it sees %s, want %s", client.from.Name(), answer.Client.Addr(), client.seen)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// servicePolicies shows how the NodePorts of a namespace are closed and opened again.
func (d *demo) servicePolicies(ctx context.Context) error {
	d.report.section("A policy for the Services of a namespace")
	var ports []target
	for _, node := range d.cluster.Nodes() {
		ports = append(ports, target{d.cluster.Outside(), node.AddressPort(30080)})
	}
	if !d.report.check("kubectl apply -f test/demo/no-node-ports.yaml: NodePorts are closed", func() (string, error) {
		if err := d.apply(ctx, "no-node-ports.yaml", noNodePortsYAML); err != nil {
			return "", err
		}
		if err := install.Until(ctx, programmingLimit, d.servicesShaped); err != nil {
			return "", err
		}
		return "30080 of each node is silent", allSilent(ctx, ports)
	}) {
		return nil // the rest would prove nothing
	}
	d.report.check("cluster IP and load balancer answer as before", func() (string, error) {
		err := expect(ctx, d.visitor.Place, "tcp", d.clusterAddress("node-port"))
		return "", errors.Join(err, expect(ctx, d.cluster.Outside(), "tcp", at(loadBalancerIP, 80)))
	})
	d.printed(ctx, "serviceproxypolicies", 1, "READY")
	if table, err := d.cluster.Kubectl(ctx, "get", "serviceproxyrules", namespace+".node-port"); err == nil { // the checks state what is wrong
		d.report.show(table)
	}
	d.report.check("kubectl delete serviceproxypolicy no-node-ports: they answer again", func() (string, error) {
		if _, err := d.cluster.Kubectl(ctx, "delete", "serviceproxypolicy", noNodePorts); err != nil {
			return "", err
		}
		for _, port := range ports {
			if err := soon(ctx, port.from, "tcp", port.address); err != nil {
				return "", err
			}
		}
		return "", nil
	})
	return nil
}

// servicesShaped returns nil when the policy for Services reports that all it selects
// have what it wants.
func (d *demo) servicesShaped(ctx context.Context) error {
	policy := &v1alpha1.ServiceProxyPolicy{}
	if err := d.cluster.Client().Get(ctx, client.ObjectKey{Name: noNodePorts}, policy); err != nil {
		return err
	}
	s := &policy.Status
	if err := rollouts.InEffect(s.Conditions, s.ObservedGeneration, policy.Generation); err != nil {
		return err
	}
	if want := int32(len(d.services)) - 1; s.Services != want || s.Applied != want { //nolint:gosec // few
		return fmt.Errorf("of %d Services %d are counted, %d applied", want, s.Services, s.Applied)
	}
	return nil
}
