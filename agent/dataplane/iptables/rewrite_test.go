package iptables

import (
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// TestRewrittenRefusals has a full pass find most rules of a shared chain of
// table filter to be others: it is written as a whole, and what goes stays there
// until the translation that takes its place has come.
func TestRewrittenRefusals(t *testing.T) {
	const n = 40
	f := newFixture(t)
	refused := someServices(n)
	for _, s := range refused {
		s.Ports = []dataplane.Port{{Protocol: s.Ports[0].Protocol, Port: s.Ports[0].Port}}
	}
	f.set(refused...)
	f.apply()
	rejects := func() int { return len(f.kernel.chain(t, filter, chainServices)) }
	if rejects() != n {
		t.Fatalf("%d refusals, want %d", rejects(), n)
	}
	f.set(someServices(n)...)
	f.rules.Full = true
	f.check(f.apply())
	if rejects() != 0 {
		t.Errorf("%d refusals are left", rejects())
	}
	var parts []string
	for _, input := range f.kernel.writes {
		for part := range strings.SplitAfterSeq(input, "COMMIT\n") {
			if strings.HasPrefix(part, "*") {
				parts = append(parts, part)
			}
		}
	}
	if len(parts) != 3 || !strings.HasPrefix(parts[1], "*nat\n") {
		t.Fatalf("parts %q", parts)
	}
	if kept := strings.Count(parts[0], "-j REJECT"); kept != n {
		t.Errorf("before the translations come %d refusals are kept, want %d:\n%s", kept, n, parts[0])
	}
}
