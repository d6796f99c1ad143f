package modes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestSwitch changes a node from mode to mode under load.
func TestSwitch(t *testing.T) {
	inKernel(t, func(t *testing.T) { switchUnderLoad(t, v1alpha1.DetectLocalClusterCIDR) })
}

// TestSwitchWithoutPodRanges is the same where it is not known what is a pod: there
// the node's own connections to cluster IPs are masqueraded for their source alone.
func TestSwitchWithoutPodRanges(t *testing.T) {
	inKernel(t, func(t *testing.T) { switchUnderLoad(t, v1alpha1.DetectLocalNodeCIDR) })
}

func switchUnderLoad(t *testing.T, detect v1alpha1.DetectLocalMode) {
	l := newLab(t, detect)
	fresh := l.alone()
	l.apply(v1alpha1.ModeIPTables)
	for range 2 {
		for _, mode := range []v1alpha1.ProxyMode{v1alpha1.ModeIPVS, v1alpha1.ModeIPTables} {
			during := fmt.Sprintf("to mode %s, pods by %s", mode, detect)
			load := l.begin()
			pending := l.apply(mode)
			load.more(200)
			t.Logf("%s: %d connections; pending: %q", during, load.end(during), pending)
			l.retired(mode, fresh[mode])
			if t.Failed() {
				t.FailNow()
			}
		}
	}
}

// alone is what the node holds in each mode where it never was in the other one.
func (l *lab) alone() map[v1alpha1.ProxyMode]string {
	l.Helper()
	out := map[v1alpha1.ProxyMode]string{}
	for _, mode := range []v1alpha1.ProxyMode{v1alpha1.ModeIPTables, v1alpha1.ModeIPVS} {
		l.apply(mode)
		for _, r := range l.routes() {
			if err := r.try(); err != nil {
				l.Errorf("mode %s: %s: %v", mode, r, err)
			}
		}
		out[mode] = l.holds()
		if err := l.plane.Cleanup(l.Context()); err != nil {
			l.Fatal(err)
		}
		l.start()
	}
	if l.Failed() {
		l.Fatalf("%s", out)
	}
	return out
}

// retired lets what is left of the other mode go, and compares what the node holds.
func (l *lab) retired(mode v1alpha1.ProxyMode, fresh string) {
	l.Helper()
	l.clock.Step(15 * time.Minute)
	l.rules.Full = false
	if pending := l.apply(mode); pending != "" {
		l.Errorf("in mode %s is left: %s", mode, pending)
	}
	l.rules.Full = true
	if diff := cmp.Diff(strings.Split(fresh, "\n"), strings.Split(l.holds(), "\n")); diff != "" {
		l.Errorf("in mode %s, a node that always was (-) differs from this one (+): %s", mode, diff)
	}
}
