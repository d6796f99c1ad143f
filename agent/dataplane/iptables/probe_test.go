package iptables

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// TestProbeError distinguishes what a node lacks from what goes wrong for a moment: only
// the first makes it fall back, or reject its settings.
func TestProbeError(t *testing.T) {
	const needs = " Perhaps iptables or your kernel needs to be upgraded."
	for _, one := range []struct {
		output string
		lacks  bool
	}{
		{"iptables v1.8.9 (legacy): can't initialize iptables table `nat': Table does not exist (do you need to insmod?)" + needs, true},
		{"iptables v1.8.9 (nf_tables): Could not fetch rule set generation id: Invalid argument", true},
		{"iptables v1.8.9 (nf_tables): table `nat' is incompatible, use 'nft' tool.", true},
		{"iptables v1.8.9 (legacy): can't initialize iptables table `nat': Interrupted system call" + needs, false},
		{"iptables v1.8.9 (legacy): can't initialize iptables table `nat': Timer expired" + needs, false},
		{"iptables v1.8.9 (legacy): can't initialize iptables table `nat': Cannot allocate memory" + needs, false},
		{"fork/exec /usr/sbin/iptables: resource temporarily unavailable", false},
		{"Another app is currently holding the xtables lock; still 5s 0us time ahead to have a chance to grab the lock...", false},
	} {
		err := probeError("iptables", newToolError("iptables", errors.New("it fails"), one.output))
		if errors.Is(err, dataplane.ErrUnsupported) != one.lacks {
			t.Errorf("%s: the node lacks it: %t, want %t: %v", one.output, !one.lacks, one.lacks, err)
		}
	}
}

// scripts puts a program into a directory that runs the given lines, under the names of
// the iptables programs.
func scripts(t *testing.T, lines string) string {
	t.Helper()
	directory := t.TempDir()
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore"} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte("#!/bin/sh\n"+lines+"\n"), 0o700); err != nil { //nolint:gosec // it is a program
			t.Fatal(err)
		}
	}
	return filepath.Join(directory, "iptables")
}

// TestPassingFailures: only what reports that something is missing counts for that.
func TestPassingFailures(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, one := range []struct {
		lines string
		ctx   context.Context //nolint:containedctx // of the row
		lacks bool
	}{
		{`echo "iptables: error while loading shared libraries: libxtables.so.12: cannot open shared object file" >&2; exit 127`, t.Context(), true},
		{"exit 1", t.Context(), true},
		{"exit 1", over, false},
		{"kill -KILL $$", t.Context(), false},
		{`echo "iptables: Cannot allocate memory" >&2; exit 1`, t.Context(), false},
	} {
		_, err := lookUp(one.ctx, scripts(t, one.lines), dataplane.IPv4)
		if err == nil || errors.Is(err, dataplane.ErrUnsupported) != one.lacks {
			t.Errorf("%s: the node lacks it: %t, want %t: %v", one.lines, !one.lacks, one.lacks, err)
		}
	}
}

func TestPassingFailuresOfMatches(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, one := range []struct {
		lines   string
		ctx     context.Context //nolint:containedctx // of the row
		missing bool
		fails   bool
	}{
		{"exit 0", t.Context(), false, false},
		{`echo "iptables v1.8.9 (nf_tables): Couldn't load match 'set':No such file or directory" >&2; exit 2`, t.Context(), true, false},
		{`echo "Warning: Extension set revision 0 not supported, missing kernel module?" >&2`, t.Context(), true, false},
		{`echo "Warning: Extension set revision 0 not supported, missing kernel module?" >&2; exit 2`, t.Context(), true, false},
		{`echo "iptables v1.8.9 (nf_tables): Couldn't load match 'set':Cannot allocate memory" >&2; exit 2`, t.Context(), false, true},
		{`echo "Could not open socket to kernel: Too many open files" >&2; exit 1`, t.Context(), false, true},
		{`echo "Another app is currently holding the xtables lock" >&2; exit 4`, t.Context(), false, true},
		{"exit 1", t.Context(), false, true},
		{"kill -KILL $$", t.Context(), false, true},
		{"exit 2", over, false, true},
	} {
		tool := &tools{command: scripts(t, one.lines)}
		missing, err := tool.lacks(one.ctx, []string{"set"})
		if (len(missing) > 0) != one.missing || (err != nil) != one.fails {
			t.Errorf("%s: %q, %v; want missing %t, an error %t", one.lines, missing, err, one.missing, one.fails)
		}
	}
}

// TestLackingVariant: a kernel that cannot be read at the moment may hold rules.
func TestLackingVariant(t *testing.T) {
	for lines, lacks := range map[string]bool{
		`echo "iptables-save v1.8.9 (nf_tables): Could not fetch rule set generation id: Invalid argument" >&2; exit 1`:        true,
		`echo "iptables-save v1.8.9 (nf_tables): Could not fetch rule set generation id: Interrupted system call" >&2; exit 1`: false,
		`echo "iptables-save v1.8.9 (nf_tables): Could not fetch rule set generation id: Permission denied" >&2; exit 1`:       false,
		"kill -KILL $$": false,
	} {
		one := program{command: scripts(t, lines), family: dataplane.IPv4, variant: VariantNFT}
		if err := one.trace(t.Context(), &traces{}); err == nil || isLacking(err) != lacks {
			t.Errorf("%s: lacking %t, want %t: %v", lines, !lacks, lacks, err)
		}
	}
}
