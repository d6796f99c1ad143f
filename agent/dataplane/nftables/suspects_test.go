package nftables

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// watched is a rig whose events are followed, and that counts what it reads.
func watched(t *testing.T) (*rig, *reading, <-chan dataplane.Change) {
	t.Helper()
	r := newRig(t)
	m, err := nft.OpenMonitor() // in the namespace of this thread
	if err != nil {
		t.Fatal(err)
	}
	r.openMonitor = func() (monitor, error) { return m, nil }
	changes := make(chan dataplane.Change, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.watch(ctx, func(c dataplane.Change) { changes <- c }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-changes // the events begin
	if err := r.connect(); err != nil {
		t.Fatal(err)
	}
	k := &reading{kernel: r.kernel}
	r.kernel = k
	return r, k, changes
}

// TestSuspects: a comparison of what other programs have changed finds the same as one of everything, and
// the repair after it leaves no difference.
func TestSuspects(t *testing.T) {
	r, k, changes := watched(t)
	seed := dataplanetest.Seed(t)
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // reproducible
	for n := range 12 {
		r.set(randomService(random, n+1))
	}
	r.apply()
	randomElement := func() (set string, e *nft.Element) {
		l, err := r.config.list(k.kernel)
		if err != nil {
			t.Fatal(err)
		}
		sets := slices.DeleteFunc(slices.Sorted(maps.Keys(l.elements)), func(set string) bool { return len(l.elements[set]) == 0 })
		set = sets[random.IntN(len(sets))]
		keys := slices.Sorted(maps.Keys(l.elements[set]))
		return set, l.elements[set][keys[random.IntN(len(keys))]]
	}
	commit := func(fill func(b *nft.Batch, t nft.Table)) {
		t.Helper()
		var b nft.Batch
		fill(&b, r.config.table())
		if err := r.conn.Commit(&b, 0); err != nil {
			t.Fatal(err)
		}
	}
	deleteOne := func() {
		set, e := randomElement()
		commit(func(b *nft.Batch, of nft.Table) { b.DeleteElement(of, set, e) })
	}
	kinds := map[string]struct {
		whole  bool // takes a comparison of everything
		change func()
	}{
		"an element deleted": {false, deleteOne},
		"several elements deleted": {false, func() {
			for range 5 {
				deleteOne()
			}
		}},
		"an endpoint replaced": {false, func() {
			l, err := r.config.list(k.kernel)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range l.elements[setEndpoints] {
				commit(func(b *nft.Batch, of nft.Table) {
					b.DeleteElement(of, setEndpoints, e)
					b.AddElement(of, setEndpoints, &nft.Element{Key: e.Key, Data: endpointData(eps("192.0.2.7:7")[0])})
				})
				return
			}
		}},
		"an element deleted and put back": {false, func() {
			set, e := randomElement()
			commit(func(b *nft.Batch, of nft.Table) {
				b.DeleteElement(of, set, e)
				b.AddElement(of, set, e)
			})
		}},
		"an unknown destination": {false, func() { r.nft("add element ip nodeproxy service-ips { 192.0.2.99 . tcp . 80 : drop }") }},
		"an endpoint too many":   {false, func() { r.nft("add element ip nodeproxy endpoints { 192.0.2.99 . tcp . 80 . 7 : 10.0.0.1 . 80 }") }},
		"an address":             {false, func() { r.nft("add element ip nodeproxy cluster-ips { 192.0.2.99 }") }},
		"a client": {false, func() {
			r.nft("add element ip nodeproxy affinity { 192.0.2.9 . 192.0.2.99 . tcp . 80 : 10.0.0.1 . 80 }")
		}},
		"a map flushed":          {false, func() { r.nft("flush map ip nodeproxy service-ips") }},
		"a chain flushed":        {false, func() { r.nft("flush chain ip nodeproxy nat-prerouting") }},
		"a rule":                 {false, func() { r.nft("add rule ip nodeproxy nat-output counter") }},
		"a chain":                {false, func() { r.nft("add chain ip nodeproxy theirs { type filter hook input priority 0; }") }},
		"a chain and an element": {false, func() { r.nft("flush chain ip nodeproxy nat-output"); deleteOne() }},
		"all rules":              {false, func() { r.nft("flush table ip nodeproxy") }},
		"the table":              {false, func() { r.nft("delete table ip nodeproxy") }},
		"the ruleset":            {false, func() { r.nft("flush ruleset") }},
		"another table":          {false, func() { r.nft("add table ip other; add chain ip nodeproxy theirs; delete chain ip nodeproxy theirs") }},
		"a set":                  {true, func() { r.nft("add set ip nodeproxy theirs { type ipv4_addr; }") }},
		"a table in its place":   {true, func() { r.nft("delete table ip nodeproxy; add table ip nodeproxy") }},
		"many elements": {true, func() {
			commit(func(b *nft.Batch, of nft.Table) {
				for i := range nft.MaxElements + 1 {
					b.AddElement(of, setClusterIPs, &nft.Element{Key: []byte{198, 18, byte(i >> 8), byte(i)}}) //nolint:gosec // few
				}
			})
		}},
	}
	for round, what := range slices.Concat(slices.Sorted(maps.Keys(kinds)), slices.Sorted(maps.Keys(kinds))) {
		for len(changes) > 0 {
			<-changes
		}
		kinds[what].change()
		<-changes
		k.elements = 0
		quick, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Suspected: true})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		found := r.found
		if read := k.elements > 0; read && !kinds[what].whole || found != nil && kinds[what].whole {
			t.Errorf("%s: read everything: %v", what, read)
		}
		all, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{})
		if err != nil || all.Drifted != quick.Drifted || !maps.Equal(all.Counts, quick.Counts) ||
			(found == nil || !found.missing) && (all.Count != quick.Count || !slices.Equal(all.Examples, quick.Examples)) {
			t.Errorf("%s: %+v; a comparison of everything: %+v, %v", what, quick, all, err)
		}
		if quick.Count > 0 {
			r.found, r.listed = found, nil
			r.rules.Full, r.rules.Repair = true, true
			if round%3 == 0 { // another program writes between the two
				r.nft(fmt.Sprintf("add table ip other%d", round))
			}
			k.elements = 0
			if _, err := r.Apply(t.Context(), &r.rules); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if read := k.elements > 0; read && !kinds[what].whole {
				t.Errorf("%s: the repair read everything: %v", what, read)
			}
		}
		r.rules.Full, r.rules.Repair = false, false
		r.unread = maxUnread // or nothing would be read
		after, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{})
		if err != nil || after.Count > 0 || after.Unread || !maps.Equal(after.Counts, r.actual.counts(r.config)) {
			t.Fatalf("%s, after the repair: %+v, %v; want %v", what, after, err, r.actual.counts(r.config))
		}
	}
}

// TestSuspectsUnknown: without all events, and when something else is to be written, everything is compared.
func TestSuspectsUnknown(t *testing.T) {
	r, k, changes := watched(t)
	r.set(web())
	r.apply()
	reads := func(what string, want bool, prepare func()) {
		t.Helper()
		for len(changes) > 0 {
			<-changes
		}
		r.nft("delete element ip nodeproxy service-ips { 10.96.0.1 . tcp . 80 }")
		<-changes
		prepare()
		k.elements = 0
		d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Suspected: true})
		if err != nil || d.Count == 0 || k.elements > 0 != want {
			t.Errorf("%s: read everything: %v; %+v, %v", what, k.elements > 0, d, err)
		}
		r.rules.Full, r.rules.Prune, r.rules.Preserve = true, true, nil
		r.apply()
	}
	name := web().Name
	reads("all is known", false, func() {})
	reads("events were lost", true, r.journal.begin)
	reads("after a comparison of everything", false, func() {})
	reads("Services may be missing", true, func() { r.rules.Prune = false })
	reads("a Service may be newer than its plan", true, func() { r.rules.Preserve = map[dataplane.ServiceName]struct{}{name: {}} })
	reads("no events", true, r.journal.end)
}

// TestRepairIsOnlyThat: what has changed since the comparison is written, too.
func TestRepairIsOnlyThat(t *testing.T) {
	r, _, changes := watched(t)
	r.set(web())
	r.apply()
	r.nft("delete element ip nodeproxy service-ips { 10.96.0.1 . tcp . 80 }")
	<-changes
	if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Suspected: true}); err != nil || !d.Drifted || r.found == nil {
		t.Fatalf("%+v, %v", d, err)
	}
	r.set(numbered(1, 3))
	r.rules.Full, r.rules.Repair = true, true
	if result := r.apply(); result.Counts[dataplane.ElementsOf(setEndpoints)] < 3 {
		t.Errorf("%+v", result.Counts)
	}
}
