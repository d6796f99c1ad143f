package modes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	traffic "github.com/nodeproxy-io/nodeproxy/test/load"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

// TestSwitch changes a node from mode to mode under load.
func TestSwitch(t *testing.T) {
	testSwitch(t, dataplane.IPv4, v1alpha1.DetectLocalClusterCIDR, nil, deaths)
}

// TestSwitchIPv6 is the same with IPv6.
func TestSwitchIPv6(t *testing.T) {
	testSwitch(t, dataplane.IPv6, v1alpha1.DetectLocalClusterCIDR, nil, deaths)
}

// TestSwitchWithoutPodRanges is the same where it is not known what is a pod: there
// the node's own connections to cluster IPs are masqueraded for their source alone.
func TestSwitchWithoutPodRanges(t *testing.T) {
	testSwitch(t, dataplane.IPv4, v1alpha1.DetectLocalNodeCIDR, nil)
}

// testSwitch skips a subtest if mode NFTables was left out: in the kernel itself nothing may be skipped.
func testSwitch(t *testing.T, family dataplane.Family, detect v1alpha1.DetectLocalMode, rounds ...map[v1alpha1.ProxyMode][]int64) {
	leftOut := inKernel(t, func(t *testing.T) { switchUnderLoad(t, family, detect, rounds...) })
	if uml.Inside() {
		return
	}
	t.Run("mode NFTables", func(t *testing.T) {
		if leftOut != "" {
			t.Skip(leftOut)
		}
	})
}

// deaths are after how many writes of what is of mode IPVS an agent dies: on the way
// to that mode when addresses and virtual servers are being made, on the way back
// when they go.
var deaths = map[v1alpha1.ProxyMode][]int64{v1alpha1.ModeIPVS: {3, 12}, v1alpha1.ModeIPTables: {2}, v1alpha1.ModeNFTables: {2}}

// changes are the modes of a round that begins in mode IPTables.
func (l *lab) changes() []v1alpha1.ProxyMode {
	if l.noNFTables == nil {
		return []v1alpha1.ProxyMode{v1alpha1.ModeIPVS, v1alpha1.ModeNFTables, v1alpha1.ModeIPVS, v1alpha1.ModeIPTables}
	}
	return []v1alpha1.ProxyMode{v1alpha1.ModeIPVS, v1alpha1.ModeIPTables}
}

// switchUnderLoad changes from mode to mode and back for each of the rounds, in
// which agents die. None knows which mode ran before, as after kube-proxy in mode
// iptables, ipvs or nftables.
func switchUnderLoad(t *testing.T, family dataplane.Family, detect v1alpha1.DetectLocalMode, rounds ...map[v1alpha1.ProxyMode][]int64) {
	l := newLab(t, family, detect)
	if l.noNFTables != nil {
		if err := uml.Report([]byte(l.noNFTables.Error())); err != nil {
			t.Fatal(err)
		}
	}
	fresh := l.alone()
	l.apply(v1alpha1.ModeIPTables)
	for _, deaths := range rounds {
		for _, mode := range l.changes() {
			during := fmt.Sprintf("%s to mode %s, pods by %s, %d killed", family, mode, detect, len(deaths[mode]))
			l.start()
			load := l.begin()
			for _, writes := range deaths[mode] {
				l.applyKilled(mode, writes)
				load.more(100)
			}
			pending := l.apply(mode)
			load.more(200)
			t.Logf("%s: %d connections; pending: %q", during, load.end(during), pending)
			l.cleaned(mode, fresh[mode])
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}

// alone is what the node has in each mode where it never was in another one.
func (l *lab) alone() map[v1alpha1.ProxyMode]string {
	l.Helper()
	out := map[v1alpha1.ProxyMode]string{}
	for _, mode := range append([]v1alpha1.ProxyMode{v1alpha1.ModeIPTables}, l.changes()...) {
		if out[mode] != "" {
			continue
		}
		l.apply(mode)
		for _, r := range l.routes() {
			if err := r.try(); err != nil {
				traffic.Lost(l, "mode %s: %s: %v", mode, r, err)
			}
		}
		out[mode] = l.holds()
		if err := l.plane.Cleanup(l.Context(), dataplane.CleanupOptions{}); err != nil {
			l.Fatal(err)
		}
		l.start()
	}
	if l.Failed() {
		l.Fatalf("%s", out)
	}
	return out
}

// cleaned waits for the cleanup of the former mode, and compares what is in the kernel.
func (l *lab) cleaned(mode v1alpha1.ProxyMode, fresh string) {
	l.Helper()
	l.clock.Step(15 * time.Minute)
	l.rules.Full = false
	if left := l.apply(mode); left != "" {
		l.Errorf("in mode %s is left: %s", mode, left)
	}
	if d, err := l.plane.Verify(l.Context(), l.rules, dataplane.VerifyOptions{}); err != nil || d.Count > 0 {
		l.Errorf("in mode %s: %+v, %v", mode, d, err)
	}
	l.rules.Full = true
	if diff := cmp.Diff(strings.Split(fresh, "\n"), strings.Split(l.holds(), "\n")); diff != "" {
		l.Errorf("in mode %s, a node that always was (-) differs from this one (+): %s", mode, diff)
	}
}
