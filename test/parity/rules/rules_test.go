package rules

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func parsed(t *testing.T, lines ...string) Rules {
	t.Helper()
	r, err := Parse(strings.Join(lines, "\n") + "\n")
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
	got := r[Key{"nat", "KUBE-SERVICES"}].Rules
	want := Rule{
		Matches: []string{"! -s 10.0.0.0/8", "-d 10.96.0.1/32", "-m conntrack ! --ctstate RELATED,ESTABLISHED", "-m tcp --dport 443", "-p tcp"},
		Target:  "DNAT --to-destination 10.0.0.1:6443",
		Comment: `a/b:c "x" -j cluster IP`, Compared: `a/b:c "x" -j cluster IP`,
		Text: got[0].Text,
	}
	if diff := cmp.Diff(want, got[0], cmp.AllowUnexported(Rule{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got[1].Target != "" || len(got[1].Matches) > 0 {
		t.Errorf("a rule that only has a Comment: %+v", got[1])
	}
	if c := r[Key{"nat", "PREROUTING"}]; !c.BuiltIn() || c.Policy != "ACCEPT" {
		t.Errorf("PREROUTING: %+v", c)
	}
}

func TestParseRejects(t *testing.T) {
	for name, save := range map[string]string{
		"a rule outside a table":   "-A INPUT -j ACCEPT\n",
		"an undeclared chain":      "*nat\n-A INPUT -j ACCEPT\n",
		"an open quote":            "*nat\n:INPUT ACCEPT [0:0]\n-A INPUT -m comment --comment \"x\n",
		"something unknown":        "*nat\n:INPUT ACCEPT [0:0]\n-D INPUT -j ACCEPT\n",
		"an option without match":  "*nat\n:INPUT ACCEPT [0:0]\n-A INPUT --dport 80 -j ACCEPT\n",
		"an argument of no option": "*nat\n:INPUT ACCEPT [0:0]\n-A INPUT x -j ACCEPT\n",
	} {
		if _, err := Parse(save); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCompare(t *testing.T) {
	services := func(lines ...string) Rules {
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
		a, b Rules
		want []string // kinds
	}{
		"the same":                      {services(one, two, tail, ep1), services(one, two, tail, ep1), nil},
		"Services in another order":     {services(one, two, tail), services(two, one, tail), nil},
		"the last rule is not last":     {services(one, two, tail), services(tail, two, one), []string{KindOrder}},
		"endpoints in another order":    {services(ep1, ep2), services(ep2, ep1), []string{KindOrder}},
		"a rule is missing":             {services(one, two), services(one), []string{KindRule}},
		"a rule is there twice":         {services(one), services(one, one), []string{KindRule}},
		"another comment":               {services(ep1), services(strings.Replace(ep1, "comment x", "comment y", 1)), []string{KindComment}},
		"no comment":                    {services(ep1), services("-A KUBE-SVC-X -j KUBE-SEP-1"), []string{KindComment}},
		"matches in another order":      {services("-A KUBE-SVC-X -m mark --mark 1 -m comment --comment x -j Y"), services("-A KUBE-SVC-X -m comment --comment x -m mark --mark 1 -j Y"), nil},
		"a chain is missing":            {services(), parsed(t, "*nat", ":KUBE-SERVICES - [0:0]"), []string{KindChain}},
		"the policy of a chain differs": {parsed(t, "*nat", ":INPUT ACCEPT [0:0]"), parsed(t, "*nat", ":INPUT DROP [0:0]"), []string{KindChain}},
	} {
		var got []string
		for _, d := range Compare("IPv4", c.a, c.b, IPTablesOrder) {
			got = append(got, d.Kind)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
