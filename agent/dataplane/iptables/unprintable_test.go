package iptables

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

func TestUnprintableTables(t *testing.T) {
	for name, c := range map[string]struct {
		output string
		want   string // in the error; empty: none
	}{
		"nat":                               {"# Table `nat' is incompatible, use 'nft' tool.\n*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n", "table nat"},
		"filter":                            {"# Table `filter' is incompatible, use 'nft' tool.\n", "table filter"},
		"a table that is not ours":          {"# Table `mangle' is incompatible, use 'nft' tool.\n", ""},
		"another program's built-in chains": {"# Table `nat' contains incompatible base-chains, use 'nft' tool to list them.\n*nat\nCOMMIT\n", ""},
		"any comment":                       {"# Warning: iptables-legacy tables present, use iptables-legacy-save to see them\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := newKernelState().read(strings.NewReader(c.output))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestUnmanagedRulesThatOnlyNftPrints: iptables-save then leaves out the whole
// table and succeeds. Nothing may be written on that ground.
func TestUnmanagedRulesThatOnlyNftPrints(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		d := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")})
		rules := newRuleset(someServices(3)...)
		mustApply(t, d, rules)
		if d.kernel.legacy() {
			return // nft does not reach its tables
		}
		run(t, "nft", "add rule ip nat PREROUTING tcp dport 99 dnat to 192.0.2.1")
		before := run(t, "nft", "list table ip nat")
		if out := run(t, filepath.Join(directory, "iptables-save")); strings.Contains(out, chainServices+" -") && strings.Contains(out, "*nat") {
			t.Skip("this iptables-save prints such a table")
		}
		if difference, err := d.Verify(context.Background(), rules, dataplane.VerifyOptions{}); err == nil {
			t.Errorf("verified: %d differences", difference.Count)
		}
		rules.Full = true
		if _, err := d.Apply(context.Background(), rules); err == nil || !strings.Contains(err.Error(), "does not print the table nat") {
			t.Errorf("applied: %v", err)
		}
		if err := d.Cleanup(context.Background(), dataplane.CleanupOptions{}); err == nil {
			t.Error("a clean-up that cannot see the rules reports that it has removed them")
		}
		if after := run(t, "nft", "list table ip nat"); after != before {
			t.Errorf("written over what could not be read: before\n%s\nafter\n%s", before, after)
		}
	})
}

// TestChangesGoOnUnread: where the kernel cannot be read any more, what changes
// is written all the same, by what it held before, and the rest when it can.
func TestChangesGoOnUnread(t *testing.T) {
	f := newFixture(t)
	f.set(someServices(3)...)
	f.apply()
	f.kernel.unread = errors.New("table nat cannot be printed")
	changed := someServices(3)[1]
	changed.ClusterIP = netip.MustParseAddr("172.30.0.99")
	f.set(changed)
	f.rules.Full = true
	for range 2 {
		if _, err := f.plane.Apply(context.Background(), f.rules); !errors.Is(err, f.kernel.unread) {
			t.Fatalf("error %v", err)
		}
		if rules := strings.Join(f.kernel.chain(t, nat, chainServices), "\n"); !strings.Contains(rules, "172.30.0.99") {
			t.Fatalf("the change is not written:\n%s", rules)
		}
	}
	if err := f.plane.Supported(context.Background(), &dataplane.Ruleset{}); err != nil {
		t.Errorf("supported: %v", err)
	}
	f.kernel.unread = nil
	f.check(f.apply())

	f.restart()
	f.kernel.unread = errors.New("table nat cannot be printed")
	f.kernel.writes = nil
	if _, err := f.plane.Apply(context.Background(), f.rules); !errors.Is(err, f.kernel.unread) || len(f.kernel.writes) > 0 {
		t.Errorf("at the start: %v, written %q", err, f.kernel.writes)
	}
}
