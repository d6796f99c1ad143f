package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// ErrNotPossible is what Check and Start wrap when this machine or this user
// cannot run a cluster. Its message explains what to do about it.
var ErrNotPossible = errors.New("cannot run a local cluster")

// Check reports whether a cluster can run here, in one line that names the
// command that helps.
func Check() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: network namespaces need root; run the same command with sudo, such as: sudo env PATH=\"$PATH\" make demo", ErrNotPossible)
	}
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return fmt.Errorf("%w: the kernel runs without IPv6, and clusters are dual stack; start it without ipv6.disable=1", ErrNotPossible)
	}
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("%w: go not found; install Go 1.26 or newer and put it on PATH (sudo drops it: sudo env PATH=\"$PATH\" …)", ErrNotPossible)
	}
	for _, p := range []struct{ program, pkg string }{
		{"iptables", "iptables"},
		{"iptables-save", "iptables"},
		{"iptables-restore", "iptables"},
	} {
		if _, err := exec.LookPath(p.program); err != nil {
			return fmt.Errorf("%w: %s not found; install it with: apt-get install %s", ErrNotPossible, p.program, p.pkg)
		}
	}
	return nil
}
