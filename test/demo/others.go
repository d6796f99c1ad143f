package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// othersChangeRules shows what becomes of rules that another program deletes: they
// are repaired, or with Audit only reported.
func (d *demo) othersChangeRules(ctx context.Context) error {
	d.report.section("Another program changes the rules")
	node := d.cluster.Node(2)
	if d.mode == v1alpha1.ModeNFTables {
		d.rulesetFlushed(ctx, node)
		d.audit(ctx)
		return nil
	}
	d.report.check("iptables -t nat -F on node-3: every rule is back", func() (string, error) {
		took, err := d.flushed(ctx, node)
		if err != nil {
			return "", err
		}
		return "after " + duration(took), soon(ctx, d.visitor.Place, "tcp", d.clusterAddress("cluster-ip"))
	})
	d.report.check("node-3 reports the repair, with an example", func() (string, error) {
		return d.reportedRepair(ctx, node)
	})
	switch d.mode {
	case v1alpha1.ModeUserspace:
		return nil // with Audit the kernel would go on redirecting
	case v1alpha1.ModeIPVS:
		d.virtualServersDeleted(ctx, node)
	}
	d.audit(ctx)
	return nil
}

// flushed flushes the table nat of a node and returns how long it took until
// all rules were back.
func (d *demo) flushed(ctx context.Context, node *cluster.Node) (time.Duration, error) {
	before, err := d.countedRules(ctx, node)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if _, err := node.Exec(ctx, "iptables", "-w", "-t", "nat", "-F"); err != nil {
		return 0, err
	}
	err = install.Until(ctx, programmingLimit, func(ctx context.Context) error { return d.sameRuleNames(ctx, node, before) })
	return time.Since(begin), err
}

// sameRuleNames wants that a node has these rules and no others, whatever they
// have counted.
func (d *demo) sameRuleNames(ctx context.Context, node *cluster.Node, want map[string]int) error {
	now, err := d.countedRules(ctx, node)
	if err != nil {
		return err
	}
	var errs []error
	for _, rule := range slices.Sorted(maps.Keys(want)) {
		if _, there := now[rule]; !there {
			errs = append(errs, fmt.Errorf("%s lacks the rule: %s", node.Name(), rule))
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(now)) {
		if _, expected := want[rule]; !expected {
			errs = append(errs, fmt.Errorf("%s has a rule that was not there: %s", node.Name(), rule))
		}
	}
	return errors.Join(errs...)
}

// reportedRepair waits until a node's status counts a repair.
func (d *demo) reportedRepair(ctx context.Context, node *cluster.Node) (string, error) {
	saw := ""
	err := install.Until(ctx, programmingLimit, func(ctx context.Context) error {
		status, err := d.statusOf(ctx, node)
		if err != nil {
			return err
		}
		if status.Drift == nil || status.Drift.Repairs == 0 || len(status.Drift.Examples) == 0 {
			return fmt.Errorf("%s reports the repairs %+v", node.Name(), status.Drift)
		}
		saw = fmt.Sprintf("%d repaired; %s", status.Drift.Repairs, status.Drift.Examples[0])
		return nil
	})
	return saw, err
}

// audit shows that with Audit rules are compared and left as they are.
func (d *demo) audit(ctx context.Context) {
	d.report.section("Audit: compare and touch nothing")
	d.report.check("enforcement: Audit: each node compares and finds no difference", func() (string, error) {
		if err := d.enforce(ctx, `"Audit"`); err != nil {
			return "", err
		}
		err := install.Until(ctx, programmingLimit, func(ctx context.Context) error {
			return d.nodeproxy.Reported(ctx, v1alpha1.ReasonAuditInSync)
		})
		return "Programmed is True, reason AuditInSync", err
	})
	node := d.cluster.Node(1)
	if d.mode == v1alpha1.ModeNFTables {
		d.auditOfAService(ctx, node)
		return
	}
	before, err := d.countedRules(ctx, node)
	title := "the NodePort rules of node-2 are deleted: it reports that, and repairs nothing"
	if d.mode == v1alpha1.ModeIPVS {
		title = "a virtual server of node-2 is deleted: it reports that, and repairs nothing"
	}
	d.report.check(title, func() (string, error) {
		if err != nil {
			return "", err
		}
		return d.differs(ctx, node)
	})
	if table, err := d.cluster.Kubectl(ctx, "get", "nodeproxyrules"); err == nil { // the checks state what is wrong
		d.report.show(table)
	}
	d.report.check("enforcement: Enforce: node-2 has every rule again", func() (string, error) {
		if err := d.enforce(ctx, "null"); err != nil {
			return "", err
		}
		err := install.Until(ctx, programmingLimit, d.programmed)
		if err == nil {
			err = d.sameRuleNames(ctx, node, before)
		}
		return "Programmed is True on three nodes", err
	})
}

// differs deletes rules of a node and wants that it reports so while they stay
// deleted.
func (d *demo) differs(ctx context.Context, node *cluster.Node) (string, error) {
	command := []string{"iptables", "-w", "-t", "nat", "-F", "KUBE-NODEPORTS"}
	if d.mode == v1alpha1.ModeIPVS {
		command = []string{"ipvsadm", "-D", "-t", node.AddressPort(30080)}
	}
	if _, err := node.Exec(ctx, command[0], command[1:]...); err != nil {
		return "", err
	}
	deleted, err := d.countedRules(ctx, node)
	if err != nil {
		return "", err
	}
	saw, err := d.reportsDifference(ctx, node)
	return saw, errors.Join(err, d.sameRuleNames(ctx, node, deleted))
}

// reportsDifference waits until a node in Audit reports that the kernel differs, and returns how.
func (d *demo) reportsDifference(ctx context.Context, node *cluster.Node) (string, error) {
	saw := ""
	err := install.Until(ctx, programmingLimit, func(ctx context.Context) error {
		status, err := d.statusOf(ctx, node)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
		if c == nil || c.Reason != v1alpha1.ReasonAuditDiffers || status.Difference == nil || len(status.Difference.Examples) == 0 {
			return fmt.Errorf("%s: Programmed is %+v, difference %+v", node.Name(), c, status.Difference)
		}
		saw = fmt.Sprintf("%d differences; %s", status.Difference.Count, status.Difference.Examples[0])
		return nil
	})
	return saw, err
}

// enforce sets the enforcement of all nodes; null for the default.
func (d *demo) enforce(ctx context.Context, value string) error {
	patch := fmt.Sprintf(`{"spec":{"settings":{"enforcement":%s}}}`, value)
	_, err := d.cluster.Kubectl(ctx, "patch", "nodeproxy", v1alpha1.NodeProxyName, "--type", "merge", "--patch", patch)
	return err
}

// statusOf returns the status of a node's NodeProxyRules.
func (d *demo) statusOf(ctx context.Context, node *cluster.Node) (*v1alpha1.NodeProxyRulesStatus, error) {
	rules := &v1alpha1.NodeProxyRules{}
	if err := d.cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
		return nil, err
	}
	return &rules.Status, nil
}
