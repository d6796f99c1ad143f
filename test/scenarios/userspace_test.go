package scenarios

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/userspace"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// newUserspaceWorld is newWorld in mode Userspace.
func newUserspaceWorld(t *testing.T, family dataplane.Family) *world {
	w := newWorld(t, family)
	proxy := userspace.NewModel(w.kernel.Addresses)
	w.World.newPlane = func() dataplane.Dataplane {
		return userspace.Redirect(family, iptables.New(family, iptables.Options{Model: w.recorder, SysctlDirectory: t.TempDir()}), proxy)
	}
	w.plane, w.proxy = w.newPlane(), proxy
	w.drains = true // what the kernel has is known to this plane alone
	w.Settings.Mode = new(v1alpha1.ModeUserspace)
	return w
}

// TestRowsInUserspace runs the rows of mode IPTables in mode Userspace, in both families. They are the same,
// but endpoints of all connections see the node's address.
func TestRowsInUserspace(t *testing.T) { runRowsIn(t, newUserspaceWorld, nil) }
