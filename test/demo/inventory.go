package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// rootRules lists the rules of the root namespace, which the demo must not
// change, without their times and counters.
func rootRules(ctx context.Context) ([]string, error) {
	text, err := exec.CommandContext(ctx, "iptables-save").Output()
	if err != nil {
		return nil, fmt.Errorf("listing the rules of the root namespace: %w", err)
	}
	counters := regexp.MustCompile(`\[\d+:\d+\]`)
	var rules []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			rules = append(rules, strings.TrimSpace(counters.ReplaceAllString(line, "")))
		}
	}
	return rules, nil
}

// checkClean returns an error that names what the demo's cluster left on the
// machine.
func checkClean(ctx context.Context, number int, rulesBefore []string) error {
	left, err := cluster.Leftovers(number)
	if err != nil {
		return err
	}
	var errs []error
	for _, one := range left {
		errs = append(errs, fmt.Errorf("left behind: %s", one))
	}
	rules, err := rootRules(ctx)
	if err != nil {
		return err
	}
	for _, one := range rules {
		if !slices.Contains(rulesBefore, one) {
			errs = append(errs, fmt.Errorf("left behind in the root namespace: %s", one))
		}
	}
	return errors.Join(errs...)
}
