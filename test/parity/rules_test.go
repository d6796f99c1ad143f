package parity

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func parsed(t *testing.T, lines ...string) rules {
	t.Helper()
	r, err := parse(strings.Join(lines, "\n") + "\n")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestParseRule(t *testing.T) {
	r := parsed(t, "# Generated", "*nat", ":PREROUTING ACCEPT [3:180]", ":KUBE-SERVICES - [0:0]",
		`-A KUBE-SERVICES ! -s 10.0.0.0/8 -d 10.96.0.1/32 -p tcp -m comment --comment "a/b:c \"x\" -j cluster IP" -m tcp --dport 443 -m conntrack ! --ctstate RELATED,ESTABLISHED -j DNAT --to-destination 10.0.0.1:6443`,
		`-A KUBE-SERVICES -m comment --comment a/b`,
		"COMMIT")
	got := r[chainKey{"nat", "KUBE-SERVICES"}].rules
	want := rule{
		matches: []string{"! -s 10.0.0.0/8", "-d 10.96.0.1/32", "-m conntrack ! --ctstate RELATED,ESTABLISHED", "-m tcp --dport 443", "-p tcp"},
		target:  "DNAT --to-destination 10.0.0.1:6443",
		comment: `a/b:c "x" -j cluster IP`, said: `a/b:c "x" -j cluster IP`,
		text: got[0].text,
	}
	if diff := cmp.Diff(want, got[0], cmp.AllowUnexported(rule{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got[1].target != "" || len(got[1].matches) > 0 {
		t.Errorf("a rule that only has a comment: %+v", got[1])
	}
	if c := r[chainKey{"nat", "PREROUTING"}]; !c.builtIn() || c.policy != "ACCEPT" {
		t.Errorf("PREROUTING: %+v", c)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, save := range map[string]string{
		"a rule outside a table":   "-A INPUT -j ACCEPT\n",
		"an undeclared chain":      "*nat\n-A INPUT -j ACCEPT\n",
		"an open quote":            "*nat\n:INPUT ACCEPT [0:0]\n-A INPUT -m comment --comment \"x\n",
		"something unknown":        "*nat\n:INPUT ACCEPT [0:0]\n-D INPUT -j ACCEPT\n",
		"an option without match":  "*nat\n:INPUT ACCEPT [0:0]\n-A INPUT --dport 80 -j ACCEPT\n",
		"an argument of no option": "*nat\n:INPUT ACCEPT [0:0]\n-A INPUT x -j ACCEPT\n",
	} {
		if _, err := parse(save); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCompare(t *testing.T) {
	services := func(lines ...string) rules {
		return parsed(t, append([]string{"*nat", ":KUBE-SERVICES - [0:0]", ":KUBE-SVC-X - [0:0]"}, lines...)...)
	}
	const (
		one  = "-A KUBE-SERVICES -d 10.96.0.1/32 -m comment --comment one -j KUBE-SVC-X"
		two  = "-A KUBE-SERVICES -d 10.96.0.2/32 -m comment --comment two -j KUBE-SVC-X"
		tail = "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"
		ep1  = "-A KUBE-SVC-X -m comment --comment x -j KUBE-SEP-1"
		ep2  = "-A KUBE-SVC-X -m comment --comment x -j KUBE-SEP-2"
	)
	for name, c := range map[string]struct {
		a, b rules
		want []string // kinds
	}{
		"the same":                      {services(one, two, tail, ep1), services(one, two, tail, ep1), nil},
		"Services in another order":     {services(one, two, tail), services(two, one, tail), nil},
		"the last rule is not last":     {services(one, two, tail), services(tail, two, one), []string{kindOrder}},
		"endpoints in another order":    {services(ep1, ep2), services(ep2, ep1), []string{kindOrder}},
		"a rule is missing":             {services(one, two), services(one), []string{kindRule}},
		"a rule is there twice":         {services(one), services(one, one), []string{kindRule}},
		"another comment":               {services(ep1), services(strings.Replace(ep1, "comment x", "comment y", 1)), []string{kindComment}},
		"no comment":                    {services(ep1), services("-A KUBE-SVC-X -j KUBE-SEP-1"), []string{kindComment}},
		"matches in another order":      {services("-A KUBE-SVC-X -m mark --mark 1 -m comment --comment x -j Y"), services("-A KUBE-SVC-X -m comment --comment x -m mark --mark 1 -j Y"), nil},
		"a chain is missing":            {services(), parsed(t, "*nat", ":KUBE-SERVICES - [0:0]"), []string{kindChain}},
		"the policy of a chain differs": {parsed(t, "*nat", ":INPUT ACCEPT [0:0]"), parsed(t, "*nat", ":INPUT DROP [0:0]"), []string{kindChain}},
	} {
		var got []string
		for _, d := range compare(ipv4, c.a, c.b) {
			got = append(got, d.kind)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestWantedDifferences(t *testing.T) {
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
	differ := func(s situation) []difference {
		a, b, met := parsed(t, kubeProxy...), parsed(t, nodeproxy...), map[string]int{}
		takeWanted(s, a, met)
		takeWanted(s, b, met)
		return compare(s.family, a, b)
	}
	if got := differ(situation{family: ipv6, localhost: true}); len(got) > 0 {
		t.Errorf("wanted differences count: %v", got)
	}
	if got := differ(situation{family: ipv6, fresh: true}); len(got) != 1 || got[0].kind != kindComment {
		t.Errorf("comments of fresh rules: %v", got)
	}
	kubeProxy = append(kubeProxy, ":KUBE-SVC-OLD - [0:0]", "-A KUBE-SVC-OLD -j KUBE-SEP-OLD", ":KUBE-SEP-OLD - [0:0]")
	if got := differ(situation{family: ipv6}); len(got) != 2 {
		t.Errorf("chains left behind: %v", got)
	}
	if got := differ(situation{family: ipv6, large: true}); len(got) > 0 {
		t.Errorf("chains left behind in a large cluster: %v", got)
	}
	if got := differ(situation{family: ipv4, localhost: true, large: true}); len(got) != 2 {
		t.Errorf("KUBE-FIREWALL that is in use: %v", got)
	}
}
