package parity

import (
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/test/parity/rules"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// wanted is a difference from kube-proxy that is meant. What it takes away from
// the rules of a program is not compared.
type wanted struct {
	name   string
	reason string
	// apply takes the difference out of the rules of one program and reports
	// whether there was any. It must not depend on which program it is.
	apply func(s situation, r rules.Rules) bool
}

// situation is what a wanted difference may depend on.
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

// wantedDifferences is the whole list. docs/parity.md explains each of them
// under its name.
func wantedDifferences() []wanted {
	return []wanted{
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
			name:   "tables that nobody uses",
			reason: "which built-in chains exist without any rule depends on which tables a program has looked at",
			apply:  dropUnusedTables,
		},
	}
}

// takeWanted takes all wanted differences out of the rules of one program and
// notes which there were.
func takeWanted(s situation, r rules.Rules, met map[string]int) {
	for _, w := range wantedDifferences() {
		if w.apply(s, r) {
			met[w.name]++
		}
	}
}

func dropCounters(_ situation, r rules.Rules) bool {
	found := false
	for _, c := range r {
		kept := c.Rules[:0:0]
		for _, one := range c.Rules {
			counts := func(match string) bool { return strings.HasPrefix(match, "-m nfacct ") }
			if !slices.ContainsFunc(one.Matches, counts) {
				kept = append(kept, one)
				continue
			}
			found = true
			// The rule that counts connections by 127.0.0.1 stands before one that
			// matches them as well.
			if strings.Contains(one.Text, "localhost_nps_accepted_pkts") {
				continue
			}
			one.Matches = slices.DeleteFunc(slices.Clone(one.Matches), counts)
			kept = append(kept, one)
		}
		c.Rules = kept
	}
	return found
}

func dropCanaries(_ situation, r rules.Rules) bool {
	found := false
	for k, c := range r {
		if k.Chain == "KUBE-PROXY-CANARY" && len(c.Rules) == 0 {
			delete(r, k)
			found = true
		}
	}
	return found
}

func dropUnreached(_ situation, r rules.Rules) bool {
	c := r[rules.Key{Table: "nat", Chain: "KUBE-SERVICES"}]
	if c == nil {
		return false
	}
	match := func(one rules.Rule) string { return strings.Join(one.Matches, " ") }
	before, external := len(c.Rules), map[string]string{} // the port whose external IP it is
	c.Rules = slices.DeleteFunc(c.Rules, func(one rules.Rule) bool {
		if port, is := strings.CutSuffix(one.Comment, " external IP"); is {
			external[match(one)] = port
		}
		port, is := strings.CutSuffix(one.Comment, " loadbalancer IP")
		return is && external[match(one)] == port
	})
	return len(c.Rules) < before
}

func dropIdleFirewall(s situation, r rules.Rules) bool {
	if s.family == worlds.IPv4 && s.localhost {
		return false
	}
	const name = "KUBE-FIREWALL"
	found := false
	for k, c := range r {
		if k == (rules.Key{Table: "filter", Chain: name}) {
			delete(r, k)
			found = true
			continue
		}
		if c.BuiltIn() {
			before := len(c.Rules)
			c.Rules = slices.DeleteFunc(c.Rules, func(one rules.Rule) bool { return one.Jump() == name && len(one.Matches) == 0 })
			found = found || len(c.Rules) < before
		}
	}
	return found
}

func dropLeftBehind(s situation, r rules.Rules) bool {
	if !s.large {
		return false
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
	found := false
	for k := range r {
		if !used[k] && slices.ContainsFunc(servicePrefixes(), func(p string) bool { return strings.HasPrefix(k.Chain, p) }) {
			delete(r, k)
			found = true
		}
	}
	return found
}

// servicePrefixes begin the names of chains that belong to a port of a Service,
// but for those of endpoints the same hash follows each.
func servicePrefixes() []string {
	return []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"}
}

func dropLargeComments(s situation, r rules.Rules) bool {
	if !s.large {
		return false
	}
	for k, c := range r {
		if strings.HasPrefix(k.Chain, "KUBE-SVC-") || strings.HasPrefix(k.Chain, "KUBE-SVL-") || strings.HasPrefix(k.Chain, "KUBE-SEP-") {
			c.Silence()
		}
	}
	return true
}

func dropStayingComments(s situation, r rules.Rules) bool {
	if s.fresh {
		return false
	}
	for _, c := range r {
		c.Silence()
	}
	return true
}

func dropUnusedTables(_ situation, r rules.Rules) bool {
	used := map[string]bool{"filter": true, "nat": true}
	for k, c := range r {
		if !c.BuiltIn() || len(c.Rules) > 0 || c.Policy != "ACCEPT" {
			used[k.Table] = true
		}
	}
	before := len(r)
	for k := range r {
		if !used[k.Table] {
			delete(r, k)
		}
	}
	return len(r) < before
}
