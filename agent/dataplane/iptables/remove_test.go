package iptables

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestNothingStaysForAModeWithoutRules: a mode that has nothing in iptables follows the two that share
// chains. What both share goes with the last one.
func TestNothingStaysForAModeWithoutRules(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		for _, family := range families {
			makeSets(t, family)
			withoutRules(t, family, directory)
		}
	})
}

func withoutRules(t *testing.T, family dataplane.Family, directory string) {
	t.Helper()
	const without = v1alpha1.ModeNFTables
	o := Options{Modes: append(twoModes(), dataplane.Declaration{Mode: without}), Programs: NewPrograms(directory, ""), Commits: &Commits{}}
	plane, fixed := New(family, o), NewFixedRules(serversMode(), family, o)
	rules, want := switchRuleset(family), ipvsRules(family)
	save := func() []string {
		return slices.Sorted(strings.Lines(withoutCounters(run(t, filepath.Join(directory, commandOf(family)+"-save")))))
	}
	ended := *rules
	ended.Mode, ended.Full = without, true
	clean := func() {
		t.Helper()
		if pending, err := plane.CleanupMode(t.Context(), &ended); pending != "" || err != nil {
			t.Fatal(pending, err)
		}
	}
	ofOurs := func(lines []string) (out []string) {
		for _, line := range lines {
			if strings.Contains(line, "KUBE-") && !strings.Contains(line, chainFirewall) {
				out = append(out, line)
			}
		}
		return out
	}
	for range 2 {
		mustApply(t, plane, rules)
		clean()
		if left := ofOurs(save()); len(left) > 0 {
			t.Errorf("%s: after mode IPTables: %s", family, left)
		}
		mustApply(t, plane, rules)
		applies(t, fixed, want)
		clean()
		if left := ofOurs(save()); len(left) == 0 {
			t.Errorf("%s: mode IPVS has lost what both modes share", family)
		}
		if err := fixed.CleanupMode(t.Context(), without); err != nil {
			t.Fatal(err)
		}
		if left := ofOurs(save()); len(left) > 0 {
			t.Errorf("%s: after mode IPVS: %s", family, left)
		}
	}
}
