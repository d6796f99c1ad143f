package nftables

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// watched is a rig whose events are followed, and what counts its readings.
type watched struct {
	*rig
	*reading
	changes chan dataplane.Change
}

func newWatched(t *testing.T, family dataplane.Family) watched {
	t.Helper()
	w := watched{rig: rigWith(t, ownNamespace(t), family), changes: make(chan dataplane.Change, 1000)}
	w.journal.patience = 10 * time.Second // of a busy machine
	m, err := nft.OpenMonitor()           // in the namespace of this thread
	if err != nil {
		t.Fatal(err)
	}
	w.openMonitor = func() (monitor, error) { return m, nil }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.watch(ctx, func(c dataplane.Change) { w.changes <- c }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	w.next() // the events begin
	if err := w.connect(); err != nil {
		t.Fatal(err)
	}
	w.reading = &reading{kernel: w.Dataplane.kernel}
	w.Dataplane.kernel = w.reading
	return w
}

// next waits for the next change.
func (w *watched) next() {
	w.Helper()
	select {
	case <-w.changes:
	case <-time.After(20 * time.Second):
		w.Fatal("no change is reported")
	}
}

// modify makes a change, and waits until it is reported.
func (w *watched) modify(change func()) {
	w.Helper()
	for len(w.changes) > 0 {
		<-w.changes
	}
	change()
	w.next()
}

// suspects compares what other programs have changed.
func (w *watched) suspects() dataplane.Difference {
	w.Helper()
	w.elements = 0
	d, err := w.Verify(w.Context(), &w.rules, dataplane.VerifyOptions{Suspected: true})
	if err != nil {
		w.Fatal(err)
	}
	return d
}

// repair applies what a comparison has found, and compares everything.
func (w *watched) repair() dataplane.Result {
	w.Helper()
	w.rules.Full, w.rules.Repair, w.elements = true, true, 0
	result, err := w.Apply(w.Context(), &w.rules)
	if err != nil {
		w.Fatal(err)
	}
	w.rules.Full, w.rules.Repair, w.rules.Dirty = false, false, map[dataplane.ServiceName]struct{}{}
	w.intact()
	return result
}

// intact compares everything.
func (w *watched) intact() {
	w.Helper()
	elements := w.elements
	w.unread = maxUnread // or nothing would be read
	after, err := w.Verify(w.Context(), &w.rules, dataplane.VerifyOptions{})
	if err != nil || after.Count > 0 || after.Unread || !maps.Equal(after.Counts, w.actual.counts(w.config)) {
		w.Fatalf("after the repair: %+v, %v; want %v", after, err, w.actual.counts(w.config))
	}
	w.elements = elements
}

// TestSuspects: a comparison of what other programs have changed finds the same as one of everything, and
// the repair after it leaves no difference.
func TestSuspects(t *testing.T) {
	for family, is6 := range map[dataplane.Family]bool{dataplane.IPv4: false, dataplane.IPv6: true} {
		t.Run(string(family), func(t *testing.T) { testSuspects(t, family, is6) })
	}
}

func testSuspects(t *testing.T, family dataplane.Family, is6 bool) {
	w := newWatched(t, family)
	random := rand.New(rand.NewPCG(dataplanetest.Seed(t), 1)) //nolint:gosec // reproducible
	for n := range 12 {
		s := randomService(random, n+1)
		if is6 {
			dataplanetest.InIPv6(s)
		}
		w.set(s)
	}
	w.apply()
	table := "ip nodeproxy"
	address := "192.0.2.99"
	if is6 {
		table, address = "ip6 nodeproxy", "2001:db8::99"
	}
	listed := func(set string) []*nft.Element {
		l, err := w.config.list(w.reading.kernel)
		if err != nil {
			t.Fatal(err)
		}
		return slices.SortedFunc(l.elements[set].all(), func(a, b *nft.Element) int { return bytes.Compare(a.Key, b.Key) })
	}
	randomElement := func() (set string, e *nft.Element) {
		sets := slices.DeleteFunc(w.config.setNames(w.actual.numbered), func(set string) bool { return set == setAffinity || len(listed(set)) == 0 })
		slices.Sort(sets)
		set = sets[random.IntN(len(sets))]
		of := listed(set)
		return set, of[random.IntN(len(of))]
	}
	commit := func(fill func(b *nft.Batch, t nft.Table)) {
		t.Helper()
		var b nft.Batch
		fill(&b, w.config.table())
		if err := w.conn.Commit(&b, 0); err != nil {
			t.Fatal(err)
		}
	}
	run := func(command string) func() {
		return func() { w.nft(strings.NewReplacer("TABLE", table, "ADDRESS", address).Replace(command)) }
	}
	kinds := map[string]struct {
		whole  bool // takes a comparison of everything
		change func()
	}{
		"an element deleted": {false, func() {
			set, e := randomElement()
			commit(func(b *nft.Batch, of nft.Table) { b.DeleteElement(of, set, e) })
		}},
		"several elements deleted": {false, func() {
			commit(func(b *nft.Batch, of nft.Table) {
				for _, set := range []string{setServices, setEndpoints, setClusterIPs} {
					b.DeleteElement(of, set, listed(set)[0])
				}
			})
		}},
		"an endpoint replaced": {false, func() {
			e := listed(setEndpoints)[0]
			commit(func(b *nft.Batch, of nft.Table) {
				b.DeleteElement(of, setEndpoints, e)
				b.AddElement(of, setEndpoints, &nft.Element{Key: e.Key, Data: make([]byte, len(e.Data))})
			})
		}},
		"an element deleted and put back": {false, func() {
			set, e := randomElement()
			commit(func(b *nft.Batch, of nft.Table) {
				b.DeleteElement(of, set, e)
				b.AddElement(of, set, e)
			})
		}},
		"an unknown destination":   {false, run("add element TABLE service-ips { ADDRESS . tcp . 80 : drop }")},
		"an endpoint too many":     {false, run("add element TABLE endpoints { ADDRESS . tcp . 80 . 7 : ADDRESS . 80 }")},
		"an address":               {false, run("add element TABLE cluster-ips { ADDRESS }")},
		"a client":                 {false, run("add element TABLE affinity { ADDRESS . ADDRESS . tcp . 80 : ADDRESS . 80 }")},
		"a map flushed":            {false, run("flush map TABLE service-ips")},
		"a chain flushed":          {false, run("flush chain TABLE nat-prerouting")},
		"a rule":                   {false, run("add rule TABLE nat-output counter")},
		"a chain":                  {false, run("add chain TABLE theirs { type filter hook input priority 0; }")},
		"a chain and an element":   {false, run("flush chain TABLE nat-output; flush map TABLE short-circuit")},
		"all rules":                {false, run("flush table TABLE")},
		"the table":                {false, run("delete table TABLE")},
		"the ruleset":              {false, run("flush ruleset")},
		"a chain made and deleted": {false, run("add chain TABLE theirs; delete chain TABLE theirs")},
		"a set":                    {true, run("add set TABLE theirs { type ipv4_addr; }")},
		"a chain of the layout":    {true, run("flush chain TABLE nat-output; flush map TABLE service-ips; delete chain TABLE nat-output")},
		"a table in its place":     {true, run("delete table TABLE; add table TABLE")},
	}
	for round, what := range slices.Concat(slices.Sorted(maps.Keys(kinds)), slices.Sorted(maps.Keys(kinds))) {
		kind := kinds[what]
		w.modify(kind.change)
		quick := w.suspects()
		suspicion := w.suspicion
		if read := w.elements > 0; read && !kind.whole || suspicion != nil && kind.whole {
			t.Errorf("%s: read everything: %v", what, read)
		}
		all, err := w.Verify(t.Context(), &w.rules, dataplane.VerifyOptions{})
		if err != nil || all.Drifted != quick.Drifted || !maps.Equal(all.Counts, quick.Counts) || quick.Unread == kind.whole ||
			(suspicion == nil || !suspicion.missing()) && (all.Count != quick.Count || !slices.Equal(all.Examples, quick.Examples)) {
			t.Errorf("%s: %+v; a comparison of everything: %+v, %v", what, quick, all, err)
		}
		if quick.Count == 0 {
			continue
		}
		w.suspicion, w.listed = suspicion, nil
		if exists := what != "the table" && what != "the ruleset"; exists && round%3 == 0 { // another program writes between the two
			w.modify(run(fmt.Sprintf("add table ip other%d; add chain TABLE theirs; delete chain TABLE theirs", round)))
		}
		result := w.repair()
		if read := w.elements > 0; read && !kind.whole || !kind.whole && result.Kind != v1alpha1.SyncPartial {
			t.Errorf("%s: the repair, of kind %s, read everything: %v", what, result.Kind, read)
		}
		if suspicion != nil && !slices.Equal(result.Repaired.Examples, quick.Examples) {
			t.Errorf("%s: repaired %+v", what, result.Repaired)
		}
	}
}

// TestSuspectsOfSets: a set of which too many elements have changed to look them up is listed, and no other one.
func TestSuspectsOfSets(t *testing.T) {
	w := newWatched(t, dataplane.IPv4)
	for n := range 800 { // so that the kernel makes no hash table larger: a listing may lack elements then
		w.set(numbered(n, 2))
	}
	w.apply()
	run := func(command string) func() { return func() { w.nft(command) } }
	for what, c := range map[string]struct {
		sets   int // that are listed
		change func()
	}{
		"a map flushed": {1, run("flush map ip nodeproxy endpoints")},
		"a map flushed, and elements of others": {1, run("flush map ip nodeproxy endpoints; " +
			"delete element ip nodeproxy service-ips { 172.16.0.7 . tcp . 80 }; add element ip nodeproxy cluster-ips { 192.0.2.99 }")},
		"a map and a chain flushed": {1, run("flush map ip nodeproxy endpoints; flush chain ip nodeproxy nat-output")},
		"two maps flushed":          {2, run("flush map ip nodeproxy endpoints; flush map ip nodeproxy service-ips")},
		"many elements added": {1, func() {
			var b nft.Batch
			for i := range nft.MaxElements + 1 {
				b.AddElement(w.config.table(), setClusterIPs, &nft.Element{Key: []byte{198, 18, byte(i >> 8), byte(i)}}) //nolint:gosec // few
			}
			if err := w.conn.Commit(&b, 0); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		w.modify(c.change)
		quick := w.suspects()
		suspicion := w.suspicion
		if w.elements != c.sets || suspicion == nil {
			t.Errorf("%s: %d sets are listed, want %d", what, w.elements, c.sets)
		}
		all, err := w.Verify(t.Context(), &w.rules, dataplane.VerifyOptions{})
		if err != nil || !quick.Drifted || all.Count != quick.Count || !slices.Equal(all.Examples, quick.Examples) || !maps.Equal(all.Counts, quick.Counts) {
			t.Errorf("%s: %+v; a comparison of everything: %+v, %v", what, quick, all, err)
		}
		w.suspicion, w.listed = suspicion, nil
		result := w.repair()
		if w.elements > 0 || result.Kind != v1alpha1.SyncPartial || !slices.Equal(result.Repaired.Examples, quick.Examples) {
			t.Errorf("%s: the repair, of kind %s, lists %d sets: %+v", what, result.Kind, w.elements, result.Repaired)
		}
	}
}

// TestSuspectsUnknown: without all events, and when something else is to be written, everything is compared.
func TestSuspectsUnknown(t *testing.T) {
	w := newWatched(t, dataplane.IPv4)
	w.set(web())
	w.apply()
	reads := func(what string, want bool, prepare func()) {
		t.Helper()
		w.modify(func() { w.nft("delete element ip nodeproxy service-ips { 10.96.0.1 . tcp . 80 }") })
		prepare()
		if d := w.suspects(); d.Count == 0 || w.elements > 0 != want {
			t.Errorf("%s: read everything: %v; %+v", what, w.elements > 0, d)
		}
		w.rules.Full, w.rules.Prune, w.rules.Preserve = true, true, nil
		w.apply()
	}
	name := web().Name
	reads("all is known", false, func() {})
	reads("another period of events", true, w.journal.begin)
	reads("after a comparison of everything", false, func() {})
	reads("Services may be missing", true, func() { w.rules.Prune = false })
	reads("a Service may be newer than its plan", true, func() { w.rules.Preserve = map[dataplane.ServiceName]struct{}{name: {}} })
	reads("a rejected Service is to be tried again", true, func() {
		w.engine.Rejected[name] = engine.Rejection[servicePlan]{Reason: "a test", Proven: true}
	})
	reads("no events", true, w.journal.end)
}

// TestRepairAndChange: what is to be written besides is written after the repair.
func TestRepairAndChange(t *testing.T) {
	w := newWatched(t, dataplane.IPv4)
	w.set(web())
	w.apply()
	w.modify(func() { w.nft("delete element ip nodeproxy service-ips { 10.96.0.1 . tcp . 80 }") })
	if d := w.suspects(); !d.Drifted {
		t.Fatalf("%+v", d)
	}
	s := numbered(1, 3)
	w.set(s)
	if result := w.repair(); w.elements > 0 || result.ServicesChanged != 2 || result.Repaired.Count != 1 || w.actual.services[s.Name] == nil {
		t.Errorf("%+v; lists %d sets", result, w.elements)
	}
}

// failing is a kernel that rejects batches.
type failing struct {
	kernel
	err   error
	times int
}

func (k *failing) Commit(b *nft.Batch, generation uint32) error {
	if k.times--; k.times >= 0 {
		return k.err
	}
	return k.kernel.Commit(b, generation)
}

// TestRepairThatFails: a full pass follows.
func TestRepairThatFails(t *testing.T) {
	w := newWatched(t, dataplane.IPv4)
	w.set(web())
	w.apply()
	for name, k := range map[string]failing{
		"rejected":               {err: &nft.RejectedError{Message: 0, Err: unix.EINVAL}, times: 1},
		"others never stop":      {err: nft.ErrChanged, times: fullTries},
		"others change it twice": {err: nft.ErrChanged, times: 2},
	} {
		w.modify(func() { w.nft("delete element ip nodeproxy service-ips { 10.96.0.1 . tcp . 80 }") })
		if d := w.suspects(); !d.Drifted {
			t.Fatalf("%s: %+v", name, d)
		}
		was := w.Dataplane.kernel
		k.kernel = was
		w.Dataplane.kernel = &k
		result := w.repair()
		if full := result.Kind == v1alpha1.SyncFull; full != (k.err != nft.ErrChanged || k.times < -1) || result.Repaired.Count != 1 { //nolint:errorlint // as set above
			t.Errorf("%s: %+v", name, result)
		}
		w.Dataplane.kernel = was
	}
}

// TestRepairForgetsClients: none keeps an endpoint that another program put in place of its own.
func TestRepairForgetsClients(t *testing.T) {
	w := newWatched(t, dataplane.IPv4)
	s := web()
	s.AffinitySeconds = 10800
	w.set(s)
	w.apply()
	w.modify(func() {
		w.nft("add element ip nodeproxy affinity { 192.0.2.9 . 10.96.0.1 . tcp . 80 : 192.0.2.66 . 80 }; delete element ip nodeproxy service-ips { 10.96.0.1 . tcp . 80 }")
	})
	if d := w.suspects(); !d.Drifted {
		t.Fatalf("%+v", d)
	}
	w.repair()
	err := w.reading.kernel.Elements(w.config.table(), setAffinity, func(e *nft.Element) { t.Errorf("a client keeps %v", e.Data) })
	if err != nil {
		t.Fatal(err)
	}
}

// TestJournal: what is known of a table by the generations of its batches.
func TestJournal(t *testing.T) {
	element := func(n int) nft.Changes { return nft.Changes{Elements: []nft.ElementID{{Set: "s", Key: fmt.Sprint(n)}}} }
	note := func(j *journal, generation uint32, c nft.Changes) {
		j.note(&nft.Commit{Generation: generation, Changes: &c})
	}
	for name, c := range map[string]struct {
		do   func(j *journal)
		at   uint32
		want int // elements
		ok   bool
	}{
		"nothing was read":           {func(j *journal) { note(j, 5, element(5)) }, 5, 1, false},
		"all since":                  {func(j *journal) { j.known(1, 5); note(j, 6, element(6)); note(j, 7, nft.Changes{}) }, 7, 1, true},
		"before it was read":         {func(j *journal) { note(j, 4, element(4)); note(j, 5, element(5)); j.known(1, 4) }, 5, 1, true},
		"reported after it was read": {func(j *journal) { j.known(1, 6); note(j, 5, element(5)); note(j, 6, element(6)) }, 6, 0, true},
		"read in another period":     {func(j *journal) { j.begin(); j.known(1, 5) }, 5, 0, false},
		"no events":                  {func(j *journal) { j.end(); j.known(2, 5) }, 5, 0, false},
		"a batch is missing":         {func(j *journal) { j.known(1, 5); note(j, 7, element(7)) }, 7, 1, false},
		"one has not come yet":       {func(j *journal) { j.known(1, 5); note(j, 6, element(6)) }, 7, 0, false},
		"the generations begin again": {func(j *journal) {
			j.known(1, 1<<32-2)
			note(j, 1<<32-1, element(1))
			note(j, 1, element(2))
		}, 1, 2, true},
		"as many as fit": {func(j *journal) {
			j.known(1, 5)
			for i := range nft.MaxElements {
				note(j, uint32(6+i), element(i)) //nolint:gosec // few
			}
		}, 5 + nft.MaxElements, nft.MaxElements, true},
		"too many": {func(j *journal) {
			j.known(1, 5)
			for i := range nft.MaxElements + 1 {
				note(j, uint32(6+i), element(i)) //nolint:gosec // few
			}
		}, 6 + nft.MaxElements, 0, true},
	} {
		j := &journal{}
		j.begin()
		c.do(j)
		got, ok := j.changes(c.at)
		if len(got.Elements) != c.want || ok != c.ok || len(got.Whole) > 0 != (name == "too many") {
			t.Errorf("%s: %d elements, sets %v, known %v", name, len(got.Elements), got.Whole, ok)
		}
	}
	j := &journal{patience: time.Hour}
	j.begin()
	j.known(1, 5)
	go note(j, 6, element(6))
	if got, ok := j.changes(6); len(got.Elements) != 1 || !ok {
		t.Errorf("a late batch: %+v, %v", got, ok)
	}
	go j.end()
	if _, ok := j.changes(7); ok {
		t.Error("known without events")
	}
}
