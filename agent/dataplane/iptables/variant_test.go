package iptables

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

func TestPrefer(t *testing.T) {
	for name, c := range map[string]struct {
		nft, legacy traces
		want        Variant
	}{
		"nothing anywhere":              {},
		"the kubelet's hint":            {legacy: traces{hint: true, kube: true}, nft: traces{canary: true, proxy: 9, kube: true, rules: 99}, want: VariantLegacy},
		"an older kubelet's canary":     {nft: traces{canary: true, kube: true}, legacy: traces{proxy: 9, kube: true, rules: 99}, want: VariantNFT},
		"hints in both, a proxy in one": {nft: traces{hint: true, kube: true}, legacy: traces{hint: true, kube: true, proxy: 2}, want: VariantLegacy},
		"proxies in both, more rules":   {nft: traces{proxy: 3, kube: true, rules: 7}, legacy: traces{proxy: 9, kube: true, rules: 6}, want: VariantNFT},
		"another chain of Kubernetes":   {legacy: traces{kube: true}, nft: traces{rules: 3}, want: VariantLegacy},
		"more rules of others":          {legacy: traces{rules: 4}, nft: traces{rules: 3}, want: VariantLegacy},
	} {
		t.Run(name, func(t *testing.T) {
			if got := prefer(c.nft, c.legacy); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestTracesReadWhatIsPrinted(t *testing.T) {
	var got traces
	for _, save := range []string{
		"*mangle\n:PREROUTING ACCEPT [0:0]\n:KUBE-IPTABLES-HINT - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n",
		"# x\n*filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n:KUBE-FORWARD - [0:0]\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n",
		"*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-ABC - [0:0]\n-A KUBE-SERVICES -j KUBE-SVC-ABC\n",
	} {
		if err := got.read(strings.NewReader(save)); err != nil {
			t.Fatal(err)
		}
	}
	if want := (traces{hint: true, canary: true, proxy: 3, kube: true, rules: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// ownNamespace gives the test a network namespace and a directory with the programs
// of both variants, where the plain names are those of usual.
func ownNamespace(t *testing.T, usual Variant) (directory string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	directory = t.TempDir()
	for variant, multi := range variants {
		path, err := exec.LookPath(multi)
		if err != nil {
			t.Fatalf("%s not found: apt-get install iptables", multi)
		}
		suffixes := []string{Variant(variant).suffix()}
		if Variant(variant) == usual {
			suffixes = append(suffixes, "")
		}
		for _, suffix := range suffixes {
			for _, command := range []string{"iptables", "ip6tables"} {
				for _, end := range []string{"", "-save", "-restore"} {
					if err := os.Symlink(path, filepath.Join(directory, command+suffix+end)); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	return directory
}

// kubelet makes the chains that a kubelet makes.
func kubelet(t *testing.T, directory string, v Variant) {
	t.Helper()
	for _, command := range []string{"iptables", "ip6tables"} {
		tool := filepath.Join(directory, command+v.suffix())
		for _, in := range []string{"mangle", "nat", "filter"} {
			run(t, tool, "-t", in, "-N", chainCanary)
		}
		run(t, tool, "-t", "mangle", "-N", chainHint)
		if command == "iptables" {
			run(t, tool, "-N", chainFirewall)
			run(t, tool, "-A", "INPUT", "-j", chainFirewall)
			run(t, tool, "-A", "OUTPUT", "-j", chainFirewall)
		}
	}
}

// chainsIn lists the chains of Kubernetes and the rules that are left in one
// variant. The legacy one is not asked for tables that it does not have.
func chainsIn(t *testing.T, directory string, v Variant) (chains, rules []string) {
	t.Helper()
	for _, command := range []string{"iptables", "ip6tables"} {
		for line := range strings.Lines(run(t, filepath.Join(directory, command+v.suffix()+"-save"))) {
			switch {
			case strings.HasPrefix(line, ":KUBE"):
				name, _, _ := strings.Cut(line[1:], " ")
				chains = append(chains, name)
			case strings.HasPrefix(line, "-A"):
				rules = append(rules, strings.TrimSpace(line))
			}
		}
	}
	return chains, rules
}

func TestVariantIsChosenOnTheRealKernel(t *testing.T) {
	forward := func(v Variant) func(t *testing.T, directory string) {
		return func(t *testing.T, directory string) {
			run(t, filepath.Join(directory, "iptables"+v.suffix()), "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.1", "-j", "MASQUERADE")
		}
	}
	proxy := func(v Variant) func(t *testing.T, directory string) {
		return func(t *testing.T, directory string) {
			mustApply(t, New(dataplane.IPv4, Options{Programs: NewPrograms(directory, v)}), newRuleset(someServices(2)...))
		}
	}
	for name, c := range map[string]struct {
		usual  Variant
		before []func(t *testing.T, directory string)
		want   Variant
	}{
		"nothing there, nf_tables in PATH":      {usual: VariantNFT, want: VariantNFT},
		"nothing there, legacy in PATH":         {usual: VariantLegacy, want: VariantLegacy},
		"a kubelet by nf_tables":                {usual: VariantLegacy, want: VariantNFT, before: []func(*testing.T, string){func(t *testing.T, f string) { kubelet(t, f, VariantNFT) }, proxy(VariantLegacy)}},
		"a kubelet by legacy":                   {usual: VariantNFT, want: VariantLegacy, before: []func(*testing.T, string){func(t *testing.T, f string) { kubelet(t, f, VariantLegacy) }, proxy(VariantNFT)}},
		"a proxy by nf_tables":                  {usual: VariantLegacy, want: VariantNFT, before: []func(*testing.T, string){proxy(VariantNFT), forward(VariantLegacy)}},
		"a proxy by legacy":                     {usual: VariantNFT, want: VariantLegacy, before: []func(*testing.T, string){proxy(VariantLegacy), forward(VariantNFT)}},
		"rules of another program by nf_tables": {usual: VariantLegacy, want: VariantNFT, before: []func(*testing.T, string){forward(VariantNFT)}},
		"rules of another program by legacy":    {usual: VariantNFT, want: VariantLegacy, before: []func(*testing.T, string){forward(VariantLegacy)}},
	} {
		t.Run(name, func(t *testing.T) {
			directory := ownNamespace(t, c.usual)
			for _, f := range c.before {
				f(t, directory)
			}
			_, legacyBefore := chainsIn(t, directory, VariantLegacy)
			programs := NewPrograms(directory, "")
			if programs.Version() != "" {
				t.Errorf("version %q before the programs are found", programs.Version())
			}
			for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
				found, err := programs.find(t.Context(), family)
				if err != nil {
					t.Fatal(err)
				}
				if found.variant != c.want {
					t.Errorf("%s: %s, want %s", family, found.variant, c.want)
				}
			}
			if got := programs.Version(); !strings.Contains(got, string(c.want)) || strings.Contains(got, "IPv6") {
				t.Errorf("version %q", got)
			}
			if c.want == VariantNFT && len(legacyBefore) == 0 {
				for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
					if tables := legacyTables(family); len(tables) > 0 {
						t.Errorf("choosing has made the legacy tables %q", tables)
					}
				}
			}
			// Decided once: what comes later is for warnings.
			if c.want == VariantNFT && len(c.before) < 2 {
				kubelet(t, directory, VariantLegacy)
			}
			if again, err := programs.find(t.Context(), dataplane.IPv4); err != nil || again.variant != c.want {
				t.Errorf("later: %v, %v", again, err)
			}
		})
	}
}

// TestRulesInBothVariants has a kubelet move to the other variant while the
// agent runs: it stays where it is and reports it; a restart moves it, and cleaning
// removes what is ours in both, and nothing of the kubelet's.
func TestRulesInBothVariants(t *testing.T) {
	for use := range variants {
		t.Run(use, func(t *testing.T) {
			use := Variant(use)
			directory := ownNamespace(t, use)
			rules := newRuleset(someServices(2)...)
			plane := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")})
			if result := mustApply(t, plane, rules); len(result.Warnings) > 0 {
				t.Fatalf("warnings %q", result.Warnings)
			}
			kubelet(t, directory, use.other())
			difference, err := plane.Verify(t.Context(), rules, dataplane.VerifyOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if difference.Count > 0 || len(difference.Warnings) != 1 || !strings.Contains(difference.Warnings[0], "restart the agent to move to "+string(use.other())) {
				t.Errorf("difference %+v", difference)
			}

			rules.Full = true
			plane = New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")})
			want := "nodeproxy-agent cleanup --iptables-variant " + string(use)
			if result := mustApply(t, plane, rules); len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], want) {
				t.Errorf("warnings %q, want %q", result.Warnings, want)
			}
			if chains, _ := chainsIn(t, directory, use.other()); !strings.Contains(strings.Join(chains, " "), "KUBE-SVC-") {
				t.Errorf("the restarted agent does not program %s: %q", use.other(), chains)
			}

			// A named variant gets the warnings, too.
			rules.Full = true
			named := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, use.other())})
			if result := mustApply(t, named, rules); len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], want) {
				t.Errorf("with the variant named: warnings %q, want %q", result.Warnings, want)
			}

			// The command that the warning names.
			if err := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, use)}).Cleanup(context.Background(), dataplane.CleanupOptions{}); err != nil {
				t.Fatal(err)
			}
			rules.Full = true
			if result := mustApply(t, plane, rules); len(result.Warnings) > 0 || result.ServicesChanged > 0 {
				t.Errorf("after the clean-up: %+v", result)
			}

			mustApply(t, New(dataplane.IPv4, Options{Programs: NewPrograms(directory, use)}), newRuleset(someServices(2)...))
			if err := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}).Cleanup(context.Background(), dataplane.CleanupOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, v := range []Variant{use, use.other()} {
				chains, rules := chainsIn(t, directory, v)
				for _, chain := range chains {
					if chain != chainHint && chain != chainCanary && chain != chainFirewall {
						t.Errorf("left behind in %s: %s", v, chain)
					}
				}
				for _, rule := range rules {
					if !strings.Contains(rule, chainFirewall) {
						t.Errorf("left behind in %s: %s", v, rule)
					}
				}
				if v != use && len(chains) < 9 {
					t.Errorf("the kubelet's chains are gone: %q", chains)
				}
			}
		})
	}
}

// TestVariantIsNotGuessed: that one variant cannot be read for a moment must not
// have the agent program the other one for as long as it runs.
func TestVariantIsNotGuessed(t *testing.T) {
	directory := ownNamespace(t, VariantLegacy)
	kubelet(t, directory, VariantNFT)
	run(t, filepath.Join(directory, "iptables-legacy"), "-t", "nat", "-A", "POSTROUTING", "-s", "192.0.2.1", "-j", "MASQUERADE")
	save := filepath.Join(directory, "iptables-nft-save")
	real, err := os.Readlink(save)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(save), os.WriteFile(save, []byte("#!/bin/sh\nkill -9 $$\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	tool := newTools(dataplane.IPv4, NewPrograms(directory, ""), &Commits{})
	if err := tool.find(t.Context()); err == nil || !strings.Contains(err.Error(), "iptables-nft-save") {
		t.Errorf("got %v, using %q", err, tool.version)
	}
	if err := errors.Join(os.Remove(save), os.Symlink(real, save)); err != nil {
		t.Fatal(err)
	}
	if err := tool.find(t.Context()); err != nil || variantOf(tool.version) != VariantNFT {
		t.Errorf("once it can be read: %v, using %q", err, tool.version)
	}
}

// TestCleanupMakesNoLegacyTables cleans a node that never used that variant.
func TestCleanupMakesNoLegacyTables(t *testing.T) {
	directory := ownNamespace(t, VariantNFT)
	plane := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")})
	mustApply(t, plane, newRuleset(someServices(1)...))
	if err := plane.Cleanup(t.Context(), dataplane.CleanupOptions{}); err != nil {
		t.Fatal(err)
	}
	if tables := legacyTables(dataplane.IPv4); len(tables) > 0 {
		t.Errorf("cleaning has made tables of the legacy variant: %q", tables)
	}
}

func TestVariantMissing(t *testing.T) {
	directory := t.TempDir()
	for _, p := range []string{"iptables", "iptables-restore", "iptables-save"} {
		if err := os.WriteFile(filepath.Join(directory, p), []byte("#!/bin/sh\necho 'iptables v1.8.9 (nf_tables)'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_, err := NewPrograms(directory, VariantLegacy).find(t.Context(), dataplane.IPv4)
	if err == nil || !strings.Contains(err.Error(), "no iptables of the legacy variant found; install") {
		t.Errorf("error %v", err)
	}
	programs := NewPrograms(directory, "")
	if _, err := programs.find(t.Context(), dataplane.IPv6); err == nil || !strings.Contains(err.Error(), "ip6tables not found") {
		t.Errorf("IPv6: error %v", err)
	}
	if _, err := programs.find(t.Context(), dataplane.IPv4); err != nil || programs.Version() != "1.8.9 (nf_tables)" {
		t.Errorf("IPv4: %q, %v", programs.Version(), err)
	}
}
