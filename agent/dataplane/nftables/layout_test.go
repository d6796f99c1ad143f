package nftables

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ownNamespace gives the test a network namespace of its own, which goes with its thread.
func ownNamespace(t testing.TB) *nft.Conn {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	conn, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// nftPrograms are the installed nft and, on amd64, all versions that hack/pinned.lock names.
func nftPrograms(t *testing.T) []string {
	t.Helper()
	programs := []string{"nft"}
	if runtime.GOARCH != "amd64" {
		return programs // hack/pinned.sh has packages for no other
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.ReadFile("../../../hack/pinned.lock")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lock)) {
		fields := strings.Fields(line)
		if fields[0] != "nft" {
			continue
		}
		version := fields[1]
		program := filepath.Join(cache, "nodeproxy/nft", version, "nft")
		if slices.Contains(programs, program) {
			continue
		}
		if _, err := os.Stat(program); err != nil {
			t.Fatalf("nft %s is missing: run hack/pinned.sh: %v", version, err)
		}
		programs = append(programs, program)
	}
	if len(programs) == 1 {
		t.Fatal("hack/pinned.lock names no nft")
	}
	return programs
}

// TestReadableByNft lists with each version of nft all chains of the layout, and an element of each
// set.
func TestReadableByNft(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	programs := nftPrograms(t)
	t.Logf("versions: %q", programs)
	for name, c := range map[string]*config{
		"IPv4": {family: dataplane.IPv4, mark: 0x4000, dropInvalid: true, pods: dataplane.PodTraffic{Source: netip.MustParsePrefix("10.244.16.0/20")}},
		"IPv6": {family: dataplane.IPv6, mark: 0x4000, pods: dataplane.PodTraffic{Interface: "veth", Prefix: true}},
	} {
		t.Run(name, func(t *testing.T) {
			conn := ownNamespace(t)
			family, service, endpoint, source, bits := "ip", "10.96.0.1", "10.244.16.1", "198.51.100.0", 24
			if c.family == dataplane.IPv6 {
				family, service, endpoint, source, bits = "ip6", "fd00:10:96::1", "fd00:10:244::1", "2001:db8::", 64
			}
			var b nft.Batch
			c.addLayout(&b, numberedSets{{affinePrefix, 10800}: {}, {rangesPrefix, int32(bits)}: {}, {rangesPrefix, 21}: {}, {rangesPrefix, int32(8 * c.header().length)}: {}}) //nolint:gosec // up to 128
			has := map[chain]struct{}{}
			for _, treats := range []treatment{pick, cluster, external, externalLocal} {
				for bits := range 8 {
					of := chain{treatment: treats, limited: bits&1 != 0, local: bits&2 != 0, affine: bits&4 != 0, count: 3}
					if of.local || treats != externalLocal {
						c.addChain(&b, of, has)
					}
				}
			}
			c.addChain(&b, chain{treatment: externalLocal, local: true}, has)
			to := netip.MustParseAddr(service).AsSlice()
			k := key{netip.AddrPortFrom(netip.MustParseAddr(service), 80), v1alpha1.ProtocolTCP}.bytes()
			data := endpointData(netip.AddrPortFrom(netip.MustParseAddr(endpoint), 8080))
			for set, e := range map[string]*nft.Element{
				setServices:      {Key: k, Verdict: nft.Goto("cluster-3"), Comment: "default/web:http"},
				setEndpoints:     {Key: indexed(k, 0), Data: data},
				setLocal:         {Key: indexed(k, 0), Data: data},
				setCircuit:       {Key: k, Verdict: nft.Goto("pick-3")},
				rangesSet(bits):  rangeElement(k, netip.MustParseAddr(source)),
				setAffinity:      {Key: slices.Concat(to, k), Data: data},
				setClusterIPs:    {Key: to},
				setHairpin:       {Key: slices.Concat(to, to)},
				affineSet(10800): {Key: k},
			} {
				b.AddElement(c.table(), set, e)
			}
			if err := conn.Commit(&b, 0); err != nil {
				t.Fatal(err)
			}
			for _, program := range programs {
				run := func(args ...string) string {
					out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
					if err != nil {
						t.Errorf("%s %q: %v: %s", program, args, err, out)
					}
					return string(out)
				}
				text := run("list", "ruleset")
				for _, bad := range []string{"unknown", "@nh", "@th", "[invalid"} {
					if strings.Contains(text, bad) {
						t.Errorf("%s does not show everything: %q:\n%s", program, bad, text)
					}
				}
				for _, want := range []string{
					tableComment,
					service + ` . tcp . 80 comment "default/web:http" : goto cluster-3`,
					service + " . tcp . 80 . 0x00000000 : " + endpoint + " . 8080",
					service + " . tcp . 80 : goto pick-3",
					service + " . tcp . 80 . " + source,
					service + " . " + service + " . tcp . 80 : " + endpoint + " . 8080",
					"elements = { " + service + " }",
					"elements = { " + service + " . " + service + " }",
					"elements = { " + service + " . tcp . 80 }",
				} {
					if !strings.Contains(text, want) {
						t.Errorf("%s does not list %q:\n%s", program, want, text)
					}
				}
				run("-j", "list", "ruleset")
				run("get", "element", family, TableName, setServices, "{ "+service+" . tcp . 80 }")
				run("get", "element", family, TableName, setEndpoints, "{ "+service+" . tcp . 80 . 0x0 }")
			}
		})
	}
}

// TestLookedUpTwice: a kernel before Linux 6.17 may miss, once for each batch, an element that a batch
// replaces. No such miss may decide over a packet. This kernel does not miss any.
func TestLookedUpTwice(t *testing.T) {
	c := &config{family: dataplane.IPv4, pods: dataplane.PodTraffic{Interface: "veth", Prefix: true}}
	lookups := func(rules []rule, set string) (n int) {
		for _, r := range rules {
			for _, e := range r {
				if bytes.Contains(e, append([]byte(set), 0)) {
					n++
				}
			}
		}
		return n
	}
	for _, f := range c.fixedChains(nil) {
		if n := lookups(f.rules, setServices); strings.HasPrefix(f.name, "nat-") && f.hook.Priority == priorityDestinationNAT && n != 2 {
			t.Errorf("chain %s looks up a destination %d times", f.name, n)
		}
	}
	for _, of := range []chain{{treatment: pick, count: 7}, {treatment: pick, local: true, count: 7}} {
		if n := lookups(c.rules(of), of.endpoints()); n != 2 {
			t.Errorf("chain %s looks up an endpoint %d times", of.name(), n)
		}
	}
	of := chain{treatment: externalLocal, local: true}
	if n := lookups(c.rules(of), setCircuit); n != 4 {
		t.Errorf("chain %s looks up what to do with pods and the node %d times", of.name(), n)
	}
}

// TestChainsComeFirst: while a packet is under way, it may find an element of the next batch, but no
// rules of a chain that is as new.
func TestChainsComeFirst(t *testing.T) {
	r := newRig(t)
	r.set(numbered(1, 3))
	r.apply()
	var has []bool
	r.wrap(func(b *nft.Batch, generation uint32, under kernel) error {
		err := under.Commit(b, generation)
		if elements, rules := r.sizes(); b.Len() > 0 {
			has = append(has, rules["pick-5"] == 2, elements[setEndpoints] == 5)
		}
		return err
	})
	r.set(numbered(1, 5))
	r.apply()
	if want := []bool{true, false, true, true}; !slices.Equal(has, want) {
		t.Errorf("the chain and the elements exist after each batch: %v, want %v", has, want)
	}
}
