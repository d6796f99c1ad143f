package desired

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// inventoryMemory is how long sets of the list are remembered, so that an inventory that is
// written or delivered late still finds its set.
const inventoryMemory = 60 * time.Second

// nameSet identifies a set of object names: their number and hash.
type nameSet struct {
	count int32
	hash  uint64
}

// formerSet is a set that the list had until some time.
type formerSet struct {
	nameSet
	number uint64
	until  time.Time
}

// inventory compares the names in the list of ServiceProxyRules with those that must exist
// according to the controller.
type inventory struct {
	// listed: the first list has come. Before that there is no set of the list, not even an
	// empty one.
	listed  bool
	names   map[string]struct{}
	current nameSet
	number  uint64      // of the current set; every set has a higher one than those before
	former  []formerSet // oldest first
	desired *nameSet    // nil: unknown
	// confirmed: list and inventory have agreed since the start, so that what belongs to no
	// Service may be removed.
	confirmed bool
	// unconfirmedSince is since when list and inventory differ; zero: they agree.
	unconfirmedSince time.Time
}

func newInventory() *inventory {
	return &inventory{names: map[string]struct{}{}}
}

// change makes a new set of the list in one step, however many names come and go, and returns
// the set's number.
func (i *inventory) change(now time.Time, add, remove []string) uint64 {
	next := i.current
	for _, name := range add {
		if _, found := i.names[name]; !found {
			i.names[name] = struct{}{}
			next.count++
			next.hash += v1alpha1.NameHash(name)
		}
	}
	for _, name := range remove {
		if _, found := i.names[name]; found {
			delete(i.names, name)
			next.count--
			next.hash -= v1alpha1.NameHash(name)
		}
	}
	i.forget(now)
	if next != i.current && i.listed {
		i.former = append(i.former, formerSet{nameSet: i.current, number: i.number, until: now})
		i.number++
	}
	i.current = next
	return i.number
}

// doubt requires list and inventory to agree again.
func (i *inventory) doubt(now time.Time) { i.confirmed, i.unconfirmedSince = false, now }

// setDesired sets the names that must exist, from NodeProxy.status.inventory. Nil: unknown.
func (i *inventory) setDesired(status *v1alpha1.Inventory) {
	i.desired = nil
	if status == nil {
		return
	}
	if hash, err := strconv.ParseUint(status.Hash, 16, 64); err == nil && v1alpha1.FormatInventoryHash(hash) == status.Hash {
		i.desired = &nameSet{count: status.Services, hash: hash}
	}
}

// agrees returns the number of the newest set of the last minute that is what must exist.
func (i *inventory) agrees(now time.Time) (number uint64, ok bool) {
	i.forget(now)
	if i.desired == nil || !i.listed {
		return 0, false
	}
	if i.current == *i.desired {
		return i.number, true
	}
	for _, former := range slices.Backward(i.former) {
		if former.nameSet == *i.desired {
			return former.number, true
		}
	}
	return 0, false
}

func (i *inventory) forget(now time.Time) {
	old := 0
	for old < len(i.former) && now.Sub(i.former[old].until) > inventoryMemory {
		old++
	}
	i.former = i.former[old:]
}

// reconcile compares list and inventory after an event of either kind, and ends the retained
// Services that the inventory does not have either. Only sets from after a Service has vanished
// count.
func (c *catalog) reconcile() {
	i, now := c.inventory, c.ledger.clock.Now()
	if !i.listed {
		return
	}
	number, agreed := i.agrees(now)
	if !agreed {
		if i.unconfirmedSince.IsZero() {
			i.unconfirmedSince = now
		}
		return
	}
	i.unconfirmedSince = time.Time{}
	c.dropRetained(number)
	if !i.confirmed {
		i.confirmed = true
		c.ledger.markFull()
	}
}

// mayPrune reports whether what belongs to no Service may be removed from the kernel: not while some
// Service's object was only seen in a form that this agent does not understand.
func (c *catalog) mayPrune() bool {
	return c.inventory.confirmed && len(c.older) == 0 && !some(maps.Values(c.invalid), func(e *entry) bool { return e.rules == nil })
}
