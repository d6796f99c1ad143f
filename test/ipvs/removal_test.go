package ipvs

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
)

// TestCleanup removes what is ours from a node, and nothing else; an agent that
// starts makes it again.
func TestCleanup(tt *testing.T) {
	t := use(tt)
	node := t.cluster.Node(0)
	unmanaged := "192.0.2.50:80"
	t.exec(node, "ipvsadm", "-A", "-t", unmanaged, "-s", "wrr")
	t.exec(node, "ipset", "create", "OTHERS", "hash:ip")
	t.exec(node, "iptables", "-w", "-N", "OTHERS")
	t.Cleanup(func() {
		for _, command := range [][]string{{"ipvsadm", "-D", "-t", unmanaged}, {"ipset", "destroy", "OTHERS"}, {"iptables", "-w", "-X", "OTHERS"}} {
			if _, err := node.Exec(t.ctx, command[0], command[1:]...); err != nil {
				t.Error(err)
			}
		}
	})
	want := t.settledState(node)
	t.killAgent(0)
	t.exec(node, filepath.Join(ipvskernel.Programs(), "nodeproxy-agent"), "cleanup")
	left, err := state(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	ours := func(line string) bool {
		return (ipvsTraces(line) || iptablesTraces(line)) && line != "-A -t "+unmanaged+" -s wrr" && line != "create OTHERS"
	}
	for _, line := range left {
		if ours(line) {
			t.Errorf("left behind: %s", line)
		}
	}
	for _, line := range []string{"-A -t " + unmanaged + " -s wrr", "create OTHERS", ":OTHERS"} {
		if !slices.Contains(left, line) {
			t.Errorf("of another program, and gone: %s", line)
		}
	}
	t.startAgent(0)
	t.until(func(ctx context.Context) error {
		now, err := state(ctx, node)
		if err == nil && difference(want, now) != "" {
			err = fmt.Errorf("it differs: %s", difference(want, now))
		}
		return err
	})
}
