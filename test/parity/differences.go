package parity

import (
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/test/parity/rules"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// intended is an intended difference from kube-proxy. What it takes away from
// the rules of a program is not compared.
type intended struct {
	name   string
	reason string
	// apply takes the difference out of the rules of one program. It must not
	// depend on which program it is.
	apply func(s situation, r rules.Rules)
}

// situation is what an intended difference may depend on.
type situation struct {
	family worlds.Family
	// localhost: NodePorts answer on 127.0.0.1, so that the drop rule of
	// KUBE-FIREWALL is the proxy's own.
	localhost bool
	// fresh: there were no rules before the present objects.
	fresh bool
	// large: there are more than 1,000 endpoints, counted for each port of a
	// Service, ready or not.
	large bool
}

// intendedDifferences is the whole list. docs/parity.md explains each of them
// under its name.
func intendedDifferences() []intended {
	return []intended{
		{
			name:   "packet counters",
			reason: "kube-proxy counts some packets by nfacct objects for two of its metrics; a rule that only counts does nothing else, and a match that counts always matches",
			apply:  dropCounters,
		},
		{
			name:   "canary chains",
			reason: "kube-proxy finds out about flushed rules by an empty chain of its own in three tables; nodeproxy compares the rules themselves",
			apply:  dropCanaries,
		},
		{
			name:   "rules that are never reached",
			reason: "where one address of a Service is both an external IP and the load balancer's, kube-proxy writes two rules, of which the first takes all packets; nodeproxy writes that one",
			apply:  dropUnreached,
		},
		{
			name:   "idle KUBE-FIREWALL",
			reason: "kube-proxy hooks the kubelet's chain KUBE-FIREWALL also where it has no rule for it (IPv6, NodePorts not on 127.0.0.1); nodeproxy leaves it to the kubelet there",
			apply:  dropIdleFirewall,
		},
		{
			name:   "chains left behind in a large cluster",
			reason: "above 1,000 endpoints kube-proxy looks for chains that are no longer used only every syncPeriod, and then only when something else changes; nodeproxy removes them at once",
			apply:  dropLeftBehind,
		},
		{
			name:   "comments in a large cluster",
			reason: "above 1,000 endpoints kube-proxy leaves the comments of rules for endpoints out, and so does nodeproxy, which counts other things and does not rewrite what it wrote before",
			apply:  dropLargeComments,
		},
		{
			name:   "comments of rules that stay",
			reason: "nodeproxy writes a rule again when it has to do something else, not when only its comment would change, such as after a port was renamed",
			apply:  dropStayingComments,
		},
		{
			name:   "unused tables",
			reason: "which built-in chains exist without any rule depends on which tables a program has looked at",
			apply:  dropUnusedTables,
		},
	}
}

// names returns the names of differences.
func names(list []intended) []string {
	var out []string
	for _, w := range list {
		out = append(out, w.name)
	}
	return out
}

// differences compares rules as two programs save them, apart from the given
// differences.
func differences(s situation, reference, tested string, apart []intended) ([]rules.Difference, error) {
	var both [2]rules.Rules
	for i, text := range []string{reference, tested} {
		r, err := rules.Parse(text)
		if err != nil {
			return nil, err
		}
		for _, w := range apart {
			w.apply(s, r)
		}
		both[i] = r
	}
	return rules.Compare(string(s.family), both[0], both[1], rules.IPTablesOrder), nil
}

// metIn returns the names of the listed differences without which two programs
// that count as equal would differ.
func metIn(s situation, reference, tested string) (met []string, err error) {
	list := intendedDifferences()
	for i, w := range list {
		found, err := differences(s, reference, tested, slices.Delete(slices.Clone(list), i, i+1))
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			met = append(met, w.name)
		}
	}
	return met, nil
}

func dropCounters(_ situation, r rules.Rules) {
	for _, c := range r {
		remaining := c.Rules[:0:0]
		for _, one := range c.Rules {
			counts := func(match string) bool { return strings.HasPrefix(match, "-m nfacct ") }
			if !slices.ContainsFunc(one.Matches, counts) {
				remaining = append(remaining, one)
				continue
			}
			// The rule that counts connections by 127.0.0.1 stands before one that
			// matches them as well.
			if strings.Contains(one.Text, "localhost_nps_accepted_pkts") {
				continue
			}
			one.Matches = slices.DeleteFunc(slices.Clone(one.Matches), counts)
			remaining = append(remaining, one)
		}
		c.Rules = remaining
	}
}

func dropCanaries(_ situation, r rules.Rules) {
	for k, c := range r {
		if k.Chain == "KUBE-PROXY-CANARY" && len(c.Rules) == 0 {
			delete(r, k)
		}
	}
}

func dropUnreached(_ situation, r rules.Rules) {
	c := r[rules.Key{Table: "nat", Chain: "KUBE-SERVICES"}]
	if c == nil {
		return
	}
	match := func(one rules.Rule) string { return strings.Join(one.Matches, " ") }
	external := map[string]string{} // the port whose external IP it is
	c.Rules = slices.DeleteFunc(c.Rules, func(one rules.Rule) bool {
		if port, is := strings.CutSuffix(one.Comment, " external IP"); is {
			external[match(one)] = port
		}
		port, is := strings.CutSuffix(one.Comment, " loadbalancer IP")
		return is && external[match(one)] == port
	})
}

func dropIdleFirewall(s situation, r rules.Rules) {
	if s.family == worlds.IPv4 && s.localhost {
		return
	}
	const name = "KUBE-FIREWALL"
	for k, c := range r {
		if k == (rules.Key{Table: "filter", Chain: name}) {
			delete(r, k)
			continue
		}
		if c.BuiltIn() {
			c.Rules = slices.DeleteFunc(c.Rules, func(one rules.Rule) bool { return one.Jump() == name && len(one.Matches) == 0 })
		}
	}
}

func dropLeftBehind(s situation, r rules.Rules) {
	if !s.large {
		return
	}
	used := map[rules.Key]bool{}
	var use func(k rules.Key)
	use = func(k rules.Key) {
		if used[k] || r[k] == nil {
			return
		}
		used[k] = true
		for _, one := range r[k].Rules {
			use(rules.Key{Table: k.Table, Chain: one.Jump()})
		}
	}
	for k, c := range r {
		if c.BuiltIn() {
			use(k)
		}
	}
	for k := range r {
		if !used[k] && slices.ContainsFunc(servicePrefixes(), func(p string) bool { return strings.HasPrefix(k.Chain, p) }) {
			delete(r, k)
		}
	}
}

// servicePrefixes begin the names of chains that belong to a port of a Service,
// but for those of endpoints the same hash follows each.
func servicePrefixes() []string {
	return []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"}
}

func dropLargeComments(s situation, r rules.Rules) {
	if !s.large {
		return
	}
	for k, c := range r {
		if strings.HasPrefix(k.Chain, "KUBE-SVC-") || strings.HasPrefix(k.Chain, "KUBE-SVL-") || strings.HasPrefix(k.Chain, "KUBE-SEP-") {
			c.Silence()
		}
	}
}

func dropStayingComments(s situation, r rules.Rules) {
	if s.fresh {
		return
	}
	for _, c := range r {
		c.Silence()
	}
}

func dropUnusedTables(_ situation, r rules.Rules) { r.DropUnusedTables() }
