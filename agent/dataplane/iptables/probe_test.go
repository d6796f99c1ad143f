package iptables

import (
	"errors"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// TestProbeError tells what a node lacks from what goes wrong for a moment: the
// former makes it fall back, or refuse its settings.
func TestProbeError(t *testing.T) {
	const needs = " Perhaps iptables or your kernel needs to be upgraded."
	for _, one := range []struct {
		output string
		lacks  bool
	}{
		{"iptables v1.8.9 (legacy): can't initialize iptables table `nat': Table does not exist (do you need to insmod?)" + needs, true},
		{"iptables v1.8.9 (nf_tables): Could not fetch rule set generation id: Invalid argument", true},
		{"iptables v1.8.9 (nf_tables): table `nat' is incompatible, use 'nft' tool.", true},
		{"iptables v1.8.9 (legacy): can't initialize iptables table `nat': Interrupted system call" + needs, false},
		{"iptables v1.8.9 (legacy): can't initialize iptables table `nat': Timer expired" + needs, false},
		{"iptables v1.8.9 (legacy): can't initialize iptables table `nat': Cannot allocate memory" + needs, false},
		{"fork/exec /usr/sbin/iptables: resource temporarily unavailable", false},
		{"Another app is currently holding the xtables lock; still 5s 0us time ahead to have a chance to grab the lock...", false},
	} {
		err := probeError("iptables", newToolError("iptables", errors.New("it fails"), one.output))
		if errors.Is(err, dataplane.ErrUnsupported) != one.lacks {
			t.Errorf("%s: the node lacks it: %t, want %t: %v", one.output, !one.lacks, one.lacks, err)
		}
	}
}
