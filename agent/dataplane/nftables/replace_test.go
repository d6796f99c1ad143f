package nftables

import (
	"net/netip"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// TestReplacedTable: packets meet the former table until the new one is complete, in which a rejected
// Service is missing.
func TestReplacedTable(t *testing.T) {
	r := newRig(t)
	bad := web()
	bad.Ports[0].Cluster = append(bad.Ports[0].Cluster, netip.MustParseAddrPort("[fd00::1]:80")) // of the other family
	for n := range 20 {
		r.set(numbered(n, 3))
	}
	r.apply()
	for _, test := range []struct {
		what                         string
		services, endpoints, batches int
	}{{"as a whole", 40, 3, 1}, {"too large for a batch", 160, 2000, 2}} {
		what := test.what
		for n := range test.services {
			r.set(numbered(n, test.endpoints))
		}
		r.set(bad)
		r.nft("delete table ip nodeproxy; add table ip nodeproxy; add set ip nodeproxy service-ips { type ipv4_addr; }")
		r.restart()
		committed := 0
		r.wrap(func(b *nft.Batch, generation uint32, under kernel) error {
			if err := under.Commit(b, generation); err != nil || b.Len() == 0 {
				return err
			}
			if committed++; committed > 1 { // Verify compares the last one
				return nil
			}
			if _, of := r.sizes(); of["nat-prerouting"] == 0 {
				t.Errorf("%s: a batch leaves a table without rules", what)
			}
			r.expectGuarded(what)
			return nil
		})
		result := r.apply()
		if _, rejected := result.Rejected[bad.Name]; !rejected || len(result.Rejected) != 1 {
			t.Errorf("%s: rejected are %v", what, result.Rejected)
		}
		if committed != test.batches {
			t.Errorf("%s: %d batches, want %d", what, committed, test.batches)
		}
	}
}

// expectGuarded: the set that has unused ports of cluster IPs rejected has none without destinations.
func (r *rig) expectGuarded(when string) {
	r.Helper()
	c := &config{family: r.of}
	l, err := c.list(r.conn)
	if err != nil {
		r.Fatal(err)
	}
	served := map[netip.Addr]struct{}{}
	for k := range c.state(l).destinations {
		served[k.Addr()] = struct{}{}
	}
	lacking := 0
	for e := range l.elements[setClusterIPs].all() {
		a, _ := c.parseAddress(e.Key)
		if _, found := served[a]; !found {
			lacking++
		}
	}
	if lacking > 0 {
		r.Errorf("%s: a batch leaves %d of %d cluster IPs without destinations", when, lacking, l.elements[setClusterIPs].len())
	}
}

// TestGuardGoesFirst: a full pass that removes Services does not reject connections to them meanwhile.
func TestGuardGoesFirst(t *testing.T) {
	r := newRig(t)
	for n := range 20 {
		r.set(numbered(n, 3))
	}
	r.apply()
	clear(r.rules.Services)
	r.restart()
	r.wrap(func(b *nft.Batch, generation uint32, under kernel) error {
		err := under.Commit(b, generation)
		r.expectGuarded("a removal")
		return err
	})
	r.apply()
}

// TestReplacedBesideWriter: a table is replaced although another program never stops changing tables.
func TestReplacedBesideWriter(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply()
	r.nft("delete table ip nodeproxy; add table ip nodeproxy; add set ip nodeproxy service-ips { type ipv4_addr; }")
	tries := 0
	r.wrap(func(b *nft.Batch, generation uint32, under kernel) error {
		tries++
		r.nft("add table ip other; delete table ip other")
		return under.Commit(b, generation)
	})
	r.rules.Full = true
	if r.apply(); tries < fullTries {
		t.Errorf("%d batches, fewer than tries", tries)
	}
}
