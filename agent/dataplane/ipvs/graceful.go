package ipvs

import (
	"net/netip"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// drainLook is the time between looks at real servers that drain.
	drainLook = 10 * time.Second
	// drainBound is how long a real server may drain: as long as IPVS remembers an
	// idle TCP session unless it is told otherwise.
	drainBound = 15 * time.Minute
)

// drains are the real servers that drain, by virtual server, with the time from
// which on they do so no longer. Such a one gets no new connections and is deleted
// once it has none.
type drains map[Key]map[netip.AddrPort]time.Time

// begin notes that a real server drains, if it does not already.
func (d drains) begin(k Key, real netip.AddrPort, now time.Time) {
	if d[k] == nil {
		d[k] = map[netip.AddrPort]time.Time{}
	}
	if _, found := d[k][real]; !found {
		d[k][real] = now.Add(drainBound)
	}
}

// end notes that a real server drains no longer, and reports whether it did.
func (d drains) end(k Key, real netip.AddrPort) bool {
	_, found := d[k][real]
	delete(d[k], real)
	if len(d[k]) == 0 {
		delete(d, k)
	}
	return found
}

// has reports whether a real server drains.
func (d drains) has(k Key, real netip.AddrPort) bool {
	_, found := d[k][real]
	return found
}

// count counts them.
func (d drains) count() int {
	n := 0
	for _, reals := range d {
		n += len(reals)
	}
	return n
}

// parting is what happens to a real server that is not desired.
type parting int

const (
	// partNow: it is deleted.
	partNow parting = iota
	// partLater: it gets weight 0, and drains.
	partLater
	// partDraining: it has weight 0, and goes on draining.
	partDraining
)

// drainsAtAll reports whether real servers of a protocol drain. What goes by UDP
// has no end that could be waited for, and the client of a flow of SCTP changes
// its path by itself.
func drainsAtAll(p v1alpha1.Protocol) bool { return p == v1alpha1.ProtocolTCP }

// part decides what happens to a real server that is not desired any more, where
// its protocol lets it drain.
func part(r Real) parting {
	switch {
	case r.Active+r.Inactive == 0:
		return partNow
	case r.Weight != 0:
		return partLater
	default:
		return partDraining
	}
}

// drained reports whether a real server that drains is to be deleted now.
func drained(r Real, until, now time.Time) bool {
	return r.Active+r.Inactive == 0 || !now.Before(until)
}
