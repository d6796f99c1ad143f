package iptables

import (
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// withoutEndpoints returns Services whose traffic is rejected in table filter.
func withoutEndpoints(n int) []*dataplane.Service {
	services := someServices(n)
	for _, s := range services {
		s.Ports = []dataplane.Port{{Protocol: s.Ports[0].Protocol, Port: s.Ports[0].Port}}
	}
	return services
}

// TestManyRejectionsGoAtOnce has a full pass find rules of a shared chain of table filter stale.
// They stay until the translation that takes their place has come. The programs look for each
// rule that is removed alone through the whole chain, so if there are many, the chain is written
// as a whole without them. Rules of others stay.
func TestManyRejectionsGoAtOnce(t *testing.T) {
	const (
		n         = maxSingly + 10
		unmanaged = "-s 192.0.2.1/32 -j RETURN"
	)
	for name, c := range map[string]struct {
		translated int // Services that get endpoints
		fresh      int // Services that come and have none
		singly     int // rules that are removed one by one
	}{
		"all":              {n, 0, 0},
		"all, others come": {n, n, 0},
		"some":             {maxSingly + 1, 0, 0},
		"few":              {maxSingly, 0, maxSingly},
		"few, others come": {maxSingly, n, maxSingly},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.rules.Prune = false
			f.set(withoutEndpoints(n)...)
			f.apply()
			f.kernel.set(t, chainID{filter, chainServices}, append(f.kernel.chain(t, filter, chainServices), unmanaged)...)

			f.set(withoutEndpoints(n + c.fresh)[n:]...)
			f.set(someServices(c.translated)...)
			f.rules.Full = true
			f.apply()
			written := strings.Join(f.kernel.writes, "")
			before, _, _ := strings.Cut(written, "*nat\n")
			if strings.Count(before, "\n-I KUBE-SERVICES ") != c.fresh || strings.Contains(before, "\n-D ") || strings.Contains(before, "\n:") {
				t.Errorf("before the translation comes: %.1000s", before)
			}
			if singly := strings.Count(written, "\n-D "); singly != c.singly {
				t.Errorf("%d rules are removed one by one, want %d", singly, c.singly)
			}
			rules := f.kernel.chain(t, filter, chainServices)
			if want := n - c.translated + c.fresh + 1; len(rules) != want || rules[want-1] != unmanaged {
				t.Errorf("%d rules, want %d: %q", len(rules), want, rules)
			}
			f.kernel.set(t, chainID{filter, chainServices}, rules[:len(rules)-1]...)
			f.check(dataplane.Result{Counts: f.plane.tally.counts()})
		})
	}
}

// TestManyRejectionsGoOnTheRealKernel: the programs take it.
func TestManyRejectionsGoOnTheRealKernel(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		const n = maxSingly + 10
		rules := newRuleset(withoutEndpoints(2 * n)...)
		mustApply(t, New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}), rules)
		for _, s := range someServices(n) {
			rules.Services[s.Name] = s
		}
		rules.Full = true
		plane := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")})
		if result := mustApply(t, plane, rules); result.ServicesChanged != n || result.Failed {
			t.Errorf("%+v", result)
		}
		holdsAll(t, New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}), rules)
	})
}

// TestUndoFindsRulesAtOnce: the programs look for each rule from the head of its chain on, and
// the one that was added last is there.
func TestUndoFindsRulesAtOnce(t *testing.T) {
	var added transaction
	for _, spec := range []string{"-s 192.0.2.1/32 -j REJECT", "-s 192.0.2.2/32 -j REJECT"} {
		added.addRule(dispatchRule{in: chainID{filter, chainServices}, spec: spec})
	}
	const want = "*filter\n-D KUBE-SERVICES -s 192.0.2.2/32 -j REJECT\n-D KUBE-SERVICES -s 192.0.2.1/32 -j REJECT\nCOMMIT\n"
	if got := added.undo().String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
