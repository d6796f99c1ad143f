package nftables

import (
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nft"
)

// ownNamespace gives the test a network namespace of its own, which goes with its thread.
func ownNamespace(t *testing.T) *nft.Conn {
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

// TestReadableByNft lists with nft all chains of the layout.
func TestReadableByNft(t *testing.T) {
	for name, c := range map[string]*config{
		"IPv4": {family: dataplane.IPv4, mark: 0x4000, dropInvalid: true, pods: dataplane.PodTraffic{Source: netip.MustParsePrefix("10.244.16.0/20")}},
		"IPv6": {family: dataplane.IPv6, mark: 0x4000, pods: dataplane.PodTraffic{Interface: "veth", Prefix: true}},
	} {
		t.Run(name, func(t *testing.T) {
			conn := ownNamespace(t)
			var b nft.Batch
			c.addLayout(&b, []int32{10800})
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
			if err := conn.Commit(&b, 0); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for _, bad := range []string{"unknown", "@nh", "@th", "[invalid"} {
				if strings.Contains(string(out), bad) {
					t.Errorf("nft does not show everything: %q", bad)
				}
			}
		})
	}
}
