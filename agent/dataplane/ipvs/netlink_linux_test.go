package ipvs

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// TestUnsupported: what a node lacks is distinguished from a transient error.
func TestUnsupported(t *testing.T) {
	for err, lacks := range map[unix.Errno]bool{
		unix.ENOENT: true, unix.EPROTONOSUPPORT: true, unix.EOPNOTSUPP: true, unix.EINVAL: true, unix.EPERM: true,
		unix.EINTR: false, unix.ENOMEM: false, unix.ENOBUFS: false, unix.EAGAIN: false, unix.EMFILE: false, unix.EBUSY: false,
	} {
		if got := unsupported("ipset", "load it", err); errors.Is(got, dataplane.ErrUnsupported) != lacks {
			t.Errorf("%v: the node lacks it: %t, want %t: %v", err, !lacks, lacks, got)
		}
	}
}
