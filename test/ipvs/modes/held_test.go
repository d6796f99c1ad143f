package modes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	traffic "github.com/nodeproxy-io/nodeproxy/test/load"
	"github.com/nodeproxy-io/nodeproxy/test/place"
)

// held is a connection that is held while the mode changes.
type held struct {
	route
	*place.Conn
	name string // of the server that answers
}

// hold opens a connection by each route on which one can be held.
func (l *lab) hold() []held {
	l.Helper()
	var out []held
	for _, r := range l.routes() {
		if r.rejected {
			continue
		}
		c, err := r.from.Dial(r.target())
		if err != nil {
			traffic.FatalLoss(l, "%s: %v", r, err)
		}
		l.Cleanup(func() { _ = c.Close() }) // nothing is lost by that
		name, _, err := c.Ask()
		if err != nil {
			traffic.FatalLoss(l, "%s: %v", r, err)
		}
		out = append(out, held{r, c, name})
	}
	return out
}

// check asks by each connection and returns those that have not gone on, with the
// same server.
func (l *lab) check(list []held) (broken []string) {
	for _, h := range list {
		if name, _, err := h.Ask(); err != nil || name != h.name {
			broken = append(broken, fmt.Sprintf("%s: %s answers, not %s: %v", h.route, name, h.name, err))
		}
	}
	slices.Sort(broken)
	return broken
}

// TestHeldConnections tests the list in docs/ipvs.md, which gives the reasons.
func TestHeldConnections(t *testing.T) {
	inKernel(t, func(t *testing.T) { heldConnections(t, dataplane.IPv4) })
}

// TestHeldConnectionsIPv6 is the same with IPv6.
func TestHeldConnectionsIPv6(t *testing.T) {
	inKernel(t, func(t *testing.T) { heldConnections(t, dataplane.IPv6) })
}

func heldConnections(t *testing.T, family dataplane.Family) {
	l := newLab(t, family, v1alpha1.DetectLocalClusterCIDR)
	goOn := func(when string, list ...held) {
		t.Helper()
		if broken := l.check(list); len(broken) > 0 {
			traffic.Lost(t, "%s: %q", when, broken)
		}
	}
	l.apply(v1alpha1.ModeIPTables)
	translated := l.hold()
	l.apply(v1alpha1.ModeIPVS)
	goOn("from mode IPTables to mode IPVS", translated...)
	scheduled := l.hold()
	if l.apply(v1alpha1.ModeIPTables) == "" {
		t.Error("nothing is waited for")
	}
	between := l.hold()
	goOn("from mode IPVS to mode IPTables", slices.Concat(translated, scheduled, between)...)
	l.clock.Step(15 * time.Minute)
	if left := l.apply(v1alpha1.ModeIPTables); left != "" {
		t.Error(left)
	}
	goOn("when IPVS has gone", slices.Concat(translated, between)...)
	for _, h := range scheduled {
		_, _, err := h.Ask()
		switch ownAddress := h.from == l.node && h.to.Addr() != l.at.nodeAddr; {
		case ownAddress && err == nil:
			t.Errorf("%s goes on without the address that it comes from", h.route)
		case ownAddress && h.protocol == "tcp" && !errors.Is(err, os.ErrDeadlineExceeded):
			t.Errorf("%s: %v; it has to hang", h.route, err)
		case ownAddress:
		case h.protocol == "udp" && err != nil, h.protocol == "tcp" && err != nil && !errors.Is(err, syscall.ECONNRESET):
			traffic.Lost(t, "%s: %v", h.route, err)
		}
	}
}
