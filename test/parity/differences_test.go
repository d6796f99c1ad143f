package parity

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/test/parity/rules"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// TestDocumentedDifferences holds the list in docs/parity.md against the one
// that is in effect.
func TestDocumentedDifferences(t *testing.T) {
	text, err := os.ReadFile("../../docs/parity.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Intended differences of the rules\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var documented, inEffect []string
	for _, m := range regexp.MustCompile(`(?m)^- \*\*(.+)\*\*:`).FindAllStringSubmatch(section, -1) {
		documented = append(documented, m[1])
	}
	for _, w := range intendedDifferences() {
		inEffect = append(inEffect, w.name)
		if w.reason == "" {
			t.Errorf("%s has no reason", w.name)
		}
	}
	slices.Sort(documented)
	slices.Sort(inEffect)
	if diff := cmp.Diff(inEffect, documented); diff != "" {
		t.Errorf("differences.go and docs/parity.md (-in effect +documented):\n%s", diff)
	}
}

func TestIntendedDifferences(t *testing.T) {
	kubeProxy := []string{
		"*mangle", ":PREROUTING ACCEPT [0:0]", ":KUBE-PROXY-CANARY - [0:0]",
		"*filter", ":INPUT ACCEPT [0:0]", ":KUBE-FIREWALL - [0:0]", ":KUBE-FORWARD - [0:0]",
		"-A INPUT -j KUBE-FIREWALL",
		"-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP",
		"*nat", ":KUBE-NODEPORTS - [0:0]",
		"-A KUBE-NODEPORTS -d 127.0.0.0/8 -p tcp -m comment --comment a/b -m tcp --dport 30080 -m nfacct --nfacct-name localhost_nps_accepted_pkts -j KUBE-EXT-X",
		"-A KUBE-NODEPORTS -p tcp -m comment --comment a/b -m tcp --dport 30080 -j KUBE-EXT-X",
		":KUBE-SERVICES - [0:0]",
		`-A KUBE-SERVICES -d 1.2.3.4/32 -m comment --comment "a/b external IP" -j KUBE-EXT-X`,
		`-A KUBE-SERVICES -d 1.2.3.4/32 -m comment --comment "a/b loadbalancer IP" -j KUBE-FW-X`,
	}
	nodeproxy := []string{
		"*filter", ":INPUT ACCEPT [0:0]", ":KUBE-FORWARD - [0:0]",
		"-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
		"*nat", ":KUBE-NODEPORTS - [0:0]",
		"-A KUBE-NODEPORTS -p tcp -m comment --comment a/c -m tcp --dport 30080 -j KUBE-EXT-X",
		":KUBE-SERVICES - [0:0]",
		`-A KUBE-SERVICES -d 1.2.3.4/32 -m comment --comment "a/b external IP" -j KUBE-EXT-X`,
	}
	differ := func(s situation) []rules.Difference {
		t.Helper()
		found, err := differences(s, lines(kubeProxy), lines(nodeproxy), intendedDifferences())
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if got := differ(situation{family: worlds.IPv6, localhost: true}); len(got) > 0 {
		t.Errorf("intended differences count: %v", got)
	}
	if got := differ(situation{family: worlds.IPv6, fresh: true}); len(got) != 1 || got[0].Kind != rules.KindComment {
		t.Errorf("comments of fresh rules: %v", got)
	}
	kubeProxy = append(kubeProxy, ":KUBE-SVC-OLD - [0:0]", "-A KUBE-SVC-OLD -j KUBE-SEP-OLD", ":KUBE-SEP-OLD - [0:0]")
	if got := differ(situation{family: worlds.IPv6}); len(got) != 2 {
		t.Errorf("chains left behind: %v", got)
	}
	if got := differ(situation{family: worlds.IPv6, large: true}); len(got) > 0 {
		t.Errorf("chains left behind in a large cluster: %v", got)
	}
	if got := differ(situation{family: worlds.IPv4, localhost: true, large: true}); len(got) != 2 {
		t.Errorf("KUBE-FIREWALL that is in use: %v", got)
	}
}

// TestMetIn removes what only kube-proxy has: only the difference that allows it is met.
func TestMetIn(t *testing.T) {
	both := []string{"*filter", ":INPUT ACCEPT [0:0]", ":KUBE-FORWARD - [0:0]"}
	for name, more := range map[string][]string{
		"canary chains":      {":KUBE-PROXY-CANARY - [0:0]"},
		"idle KUBE-FIREWALL": {":KUBE-FIREWALL - [0:0]", "-A INPUT -j KUBE-FIREWALL"},
		"the same rules":     nil,
	} {
		got, err := metIn(situation{family: worlds.IPv6}, lines(append(slices.Clone(both), more...)), lines(both))
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool][]string{true: {name}}[more != nil]; !slices.Equal(got, want) {
			t.Errorf("%s: met %q", name, got)
		}
	}
}

func lines(list []string) string { return strings.Join(list, "\n") + "\n" }
