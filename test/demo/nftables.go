package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// affinitySet has the clients of session affinity, which packets add.
const affinitySet = "affinity"

// tableObjects returns the rules and elements of a node's tables in mode NFTables, without the
// clients of session affinity. A rule is named with its handle: one that is written again gets
// another. Nothing in the tables counts packets.
func tableObjects(ctx context.Context, node *cluster.Node) (map[string]int, error) {
	out := map[string]int{}
	for _, family := range []string{"ip", "ip6"} {
		text, err := node.Exec(ctx, "nft", "-j", "list", "table", family, nftables.TableName)
		if err != nil {
			return nil, err
		}
		var listing struct {
			Objects []map[string]struct {
				Name     string            `json:"name"`
				Chain    string            `json:"chain"`
				Handle   int               `json:"handle"`
				Elements []json.RawMessage `json:"elem"`
			} `json:"nftables"`
		}
		if err := json.Unmarshal([]byte(text), &listing); err != nil {
			return nil, fmt.Errorf("reading the table of %s: %w", node.Name(), err)
		}
		for _, object := range listing.Objects {
			if rule, is := object["rule"]; is {
				out[fmt.Sprintf("%s rule %d of chain %s", family, rule.Handle, rule.Chain)] = 0
			}
			for _, kind := range []string{"set", "map"} {
				set := object[kind]
				if set.Name == affinitySet {
					continue
				}
				for _, element := range set.Elements {
					out[fmt.Sprintf("%s %s: %s", family, set.Name, element)] = 0
				}
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no rules", node.Name())
	}
	return out, nil
}

// showTable prints where packets to one Service go, and wants as many elements as the node reports.
func (d *demo) showTable(ctx context.Context, node *cluster.Node) {
	d.report.check(node.Name()+" reports as many elements as its tables have", func() (string, error) {
		saw := ""
		err := install.Until(ctx, programmingLimit, func(ctx context.Context) error {
			have := map[string]int32{}
			for _, family := range []string{"ip", "ip6"} {
				for _, set := range []string{"service-ips", "endpoints"} {
					text, err := node.Exec(ctx, "nft", "-j", "list", "map", family, nftables.TableName, set)
					if err != nil {
						return err
					}
					n, err := elementsOf(text)
					if err != nil {
						return fmt.Errorf("reading map %s of %s: %w", set, node.Name(), err)
					}
					have[set] += n
				}
			}
			status, err := d.statusOf(ctx, node)
			if err != nil {
				return err
			}
			if status.Kernel == nil {
				return fmt.Errorf("%s reports nothing of the kernel", node.Name())
			}
			var counts []string
			for _, set := range status.Kernel.Sets {
				if n, counted := have[set.Name]; counted && n != set.Elements {
					return fmt.Errorf("map %s has %d elements, %s reports %d", set.Name, n, node.Name(), set.Elements)
				}
				delete(have, set.Name)
				counts = append(counts, fmt.Sprintf("%s %d", set.Name, set.Elements))
			}
			saw = strings.Join(counts, ", ")
			if len(have) > 0 {
				return fmt.Errorf("%s does not report %v", node.Name(), have)
			}
			return nil
		})
		return saw, err
	})
	if text, err := node.Exec(ctx, "nft", "list", "chain", "ip", nftables.TableName, "pick-3"); err == nil { // the checks state what is wrong
		d.report.show(text)
	}
}

func elementsOf(listing string) (int32, error) {
	var out struct {
		Objects []struct {
			Map struct {
				Elements []json.RawMessage `json:"elem"`
			} `json:"map"`
		} `json:"nftables"`
	}
	n := 0
	err := json.Unmarshal([]byte(listing), &out)
	for _, object := range out.Objects {
		n += len(object.Map.Elements)
	}
	return int32(n), err //nolint:gosec // few
}

// rulesetFlushed shows what becomes of the table when another program removes all rules: the kernel
// keeps it, or, before Linux 6.9, the agent repairs it.
func (d *demo) rulesetFlushed(ctx context.Context, node *cluster.Node) {
	d.report.check("nft flush ruleset on node-3: every rule is there", func() (string, error) {
		before, err := tableObjects(ctx, node)
		if err != nil {
			return "", err
		}
		begin := time.Now()
		if _, err := node.Exec(ctx, "nft", "flush", "ruleset"); err != nil {
			return "", err
		}
		saw := "the kernel did not let nft remove them"
		if d.sameRuleNames(ctx, node, before) != nil {
			err = install.Until(ctx, programmingLimit, func(ctx context.Context) error {
				now, err := tableObjects(ctx, node)
				if err == nil && len(now) < len(before) {
					err = fmt.Errorf("%s has %d of %d rules and elements", node.Name(), len(now), len(before))
				}
				return err
			})
			saw = "after " + duration(time.Since(begin))
		}
		return saw, errors.Join(err, soon(ctx, d.visitor.Place, "tcp", d.clusterAddress("cluster-ip")))
	})
}

// auditOfAService shows that with Audit a change is reported and not programmed.
func (d *demo) auditOfAService(ctx context.Context, node *cluster.Node) {
	const name = "in-audit"
	before, err := tableObjects(ctx, node)
	d.report.check("a Service is created: node-2 reports the difference, and programs nothing", func() (string, error) {
		if err != nil {
			return "", err
		}
		if _, err := d.cluster.Kubectl(ctx, "create", "service", "clusterip", name, "--tcp=80", "--namespace", namespace); err != nil {
			return "", err
		}
		saw, err := d.reportsDifference(ctx, node)
		return saw, errors.Join(err, d.sameRuleNames(ctx, node, before))
	})
	d.report.check("enforcement: Enforce: node-2 programs it", func() (string, error) {
		if err := d.enforce(ctx, "null"); err != nil {
			return "", err
		}
		return "", install.Until(ctx, programmingLimit, func(ctx context.Context) error {
			now, err := tableObjects(ctx, node)
			if err == nil && len(now) <= len(before) {
				err = fmt.Errorf("%s has %d rules and elements, as before", node.Name(), len(now))
			}
			return err
		})
	})
	d.showTable(ctx, node) // the condition has just changed, so that the counts are new
	d.report.check("it is deleted: everything is as before", func() (string, error) {
		if _, err := d.cluster.Kubectl(ctx, "delete", "service", name, "--namespace", namespace); err != nil {
			return "", err
		}
		return "Programmed is True on three nodes", install.Until(ctx, programmingLimit, func(ctx context.Context) error {
			return errors.Join(d.programmed(ctx), d.sameRuleNames(ctx, node, before))
		})
	})
}
