package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// countedRules returns the rules of a node with the packets that each has
// counted; in mode IPVS also its virtual servers, with the connections that each
// has counted, their real servers, and the entries of ipsets. In mode NFTables nothing counts.
func (d *demo) countedRules(ctx context.Context, node *cluster.Node) (map[string]int, error) {
	if d.mode == v1alpha1.ModeNFTables {
		return tableObjects(ctx, node)
	}
	text, err := node.Exec(ctx, "iptables-save", "-c")
	if err != nil {
		return nil, err
	}
	rule := regexp.MustCompile(`^\[(\d+):\d+\] (-A .*)$`)
	rules, table := map[string]int{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "*") {
			table = line
		}
		if m := rule.FindStringSubmatch(line); m != nil {
			packets, err := strconv.Atoi(m[1])
			if err != nil {
				return nil, fmt.Errorf("reading the counters of %s: %w", node.Name(), err)
			}
			rules[table+" "+m[2]] = packets
		}
	}
	if len(rules) == 0 {
		return nil, fmt.Errorf("%s has no rules", node.Name())
	}
	if d.mode == v1alpha1.ModeIPVS {
		return rules, addIPVS(ctx, node, rules)
	}
	return rules, nil
}

// sameRules wants the same rules with counters that only grew.
func sameRules(before, after map[string]int, counts bool) error {
	var errs []error
	counted := 0
	for rule, packets := range before {
		now, exists := after[rule]
		switch {
		case !exists:
			errs = append(errs, fmt.Errorf("the rule is gone: %s", rule))
		case now < packets:
			errs = append(errs, fmt.Errorf("the rule was written again, it had counted %d packets and now %d: %s", packets, now, rule))
		}
		if strings.Contains(rule, "-A KUBE-SVC-") || strings.HasPrefix(rule, virtualServer) {
			counted += packets
		}
	}
	for rule := range after {
		if _, existed := before[rule]; !existed {
			errs = append(errs, fmt.Errorf("the rule is new: %s", rule))
		}
	}
	if counts && counted == 0 {
		errs = append(errs, errors.New("no rule of a Service had counted any packet, so that this check proves nothing"))
	}
	return errors.Join(errs...)
}
