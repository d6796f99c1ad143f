package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
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

// checkClean returns an error that names the rules that the demo left in the root
// namespace. The cluster's end reports everything else.
func checkClean(ctx context.Context, before []string) error {
	rules, err := rootRules(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, one := range rules {
		if !slices.Contains(before, one) {
			errs = append(errs, fmt.Errorf("left behind in the root namespace: %s", one))
		}
	}
	return errors.Join(errs...)
}
