package nftables

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nft"
)

// TestRepair has another program change the table, and writes what a comparison finds.
func TestRepair(t *testing.T) {
	conn := ownNamespace(t)
	c := testConfig
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
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
		d, l := compare()
		if d.equal() {
			t.Fatalf("%s is not noticed", what)
		}
		var b nft.Batch
		if d.rebuild {
			t.Fatalf("%s takes a new table", what)
		}
		d.layout(&b, c.table())
		var names []string
		for _, s := range c.sets() {
			names = append(names, s.Name)
		}
		for name := range l.sets {
			if strings.HasPrefix(name, "affine-") {
				names = append(names, name)
			}
		}
		for _, s := range d.sets {
			names = append(names, s.Name)
		}
		slices.Sort(names)
		names = slices.Compact(names)
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
