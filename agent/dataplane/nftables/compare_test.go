package nftables

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// TestRepair has another program change the table, and writes what a comparison finds.
func TestRepair(t *testing.T) {
	conn := ownNamespace(t)
	c := testConfig
	random := rand.New(rand.NewPCG(dataplanetest.Seed(t), 1)) //nolint:gosec // a test
	services := map[dataplane.ServiceName]*dataplane.Service{}
	for n := range 6 {
		s := randomService(random, n+1)
		services[s.Name] = s
	}
	compare := func() (*comparison, *listing) {
		t.Helper()
		plans := map[dataplane.ServiceName]*servicePlan{}
		for name, s := range services {
			plan := c.planService(s)
			plans[name] = &plan
		}
		l, err := c.list(conn)
		if err != nil {
			t.Fatal(err)
		}
		return c.compare(l, plans), l
	}
	repair := func(what string) {
		t.Helper()
		d, _ := compare()
		if d.equal() {
			t.Fatalf("%s is not noticed", what)
		}
		var b nft.Batch
		if d.rebuild {
			t.Fatalf("%s takes a new table", what)
		}
		d.layout(&b, c.table(), false)
		names := c.setNames(d.desired.numbered)
		all := newChange()
		for _, one := range d.services {
			for set, elements := range one.deleted {
				all.deleted[set] = append(all.deleted[set], elements...)
			}
			for set, elements := range one.added {
				all.added[set] = append(all.added[set], elements...)
			}
		}
		all.appendTo(&b, c.table(), names)
		d.stale.appendTo(&b, c.table(), names)
		if err := conn.Commit(&b, 0); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		after, l := compare()
		if !after.equal() {
			t.Fatalf("%s: still different: %+v, chains %v", what, after, after.chains)
		}
		if got, want := described(c.state(l)), described(after.desired); !slices.Equal(got, want) {
			t.Fatalf("%s: the table has\n%q\nnot\n%q", what, got, want)
		}
	}
	repair("an empty kernel")
	for _, command := range []string{
		"delete table ip nodeproxy",
		"flush ruleset",
		"flush chain ip nodeproxy nat-prerouting",
		"flush set ip nodeproxy cluster-ips",
		"add element ip nodeproxy cluster-ips { 192.0.2.99 }",
		"add element ip nodeproxy service-ips { 192.0.2.99 . tcp . 80 : drop }",
		"add element ip nodeproxy endpoints { 192.0.2.99 . tcp . 80 . 7 : 10.0.0.1 . 80 }",
		"add rule ip nodeproxy nat-output counter",
		"flush map ip nodeproxy service-ips",
		"flush table ip nodeproxy",
	} {
		if out, err := exec.Command("nft", command).CombinedOutput(); err != nil { //nolint:gosec // the list above
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		repair(command)
	}
	for name := range services {
		services[name] = randomService(random, int(name.Name[1]-'0'))
		if d, _ := compare(); !d.equal() {
			repair(fmt.Sprintf("another %s", name))
		}
	}
}

// reading counts how often the sets are listed, and how often elements besides those that packets add.
type reading struct {
	kernel
	times, elements int
}

func (k *reading) Sets(t nft.Table) ([]nft.ListedSet, error) {
	k.times++
	return k.kernel.Sets(t)
}

func (k *reading) Elements(t nft.Table, set string, yield func(*nft.Element)) error {
	if set != setAffinity {
		k.elements++
	}
	return k.kernel.Elements(t, set, yield)
}

// TestVerifyReadsWhatHasChanged: while no program changes any table, ours is read only now and then.
func TestVerifyReadsWhatHasChanged(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply() // which verifies
	k := &reading{kernel: r.kernel}
	r.kernel = k
	verify := func(what string, times, reads int) {
		t.Helper()
		before := k.times
		for range times {
			if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{}); err != nil || d.Count > 0 || d.Counts[dataplane.Elements] == 0 {
				t.Errorf("%s: %+v, %v", what, d, err)
			}
		}
		if got := k.times - before; got != reads {
			t.Errorf("%s: read %d times, want %d", what, got, reads)
		}
	}
	verify("nothing has happened", maxUnread, 0)
	verify("now and then", 2*(maxUnread+1), 2)
	r.nft("add table ip other")
	verify("another table", 2, 1)
	r.set(numbered(1, 3))
	r.apply()
	verify("we have written", 2, 0)
}
