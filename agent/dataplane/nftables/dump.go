package nftables

import (
	"errors"
	"reflect"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// dumpPause is the first pause before a part of the table is listed again. It doubles.
const dumpPause = 2 * time.Millisecond

// dump lists a part of the table, and repeats only that, with pauses, while the listing is interrupted: listTries
// times at most.
//
// The kernel marks a listing as interrupted if any program has committed a batch meanwhile, even one for
// another table; Linux 6.18 marks those of elements never. A program that never stops writing interrupts every
// long listing, however often it is repeated. An interrupted listing has its last element nevertheless. It may only lack elements if others,
// which precede them, have gone: the kernel resumes by counting. So it is accepted in two cases:
//
//   - The socket that reads owns the table: no other program can have changed it, and the order of a set does
//     not depend on other tables.
//   - It equals the one before. Elements that go meanwhile are in the one before, and not in this one, unless
//     they are put back in between: the next comparison would find those. This also helps without an owner, and
//     before there are events.
//
// Parts may be of different generations, because the listing has that from before its first part: later changes
// are in the journal, or are compared when events begin. If a batch is wrong because of them, the kernel rejects
// it, and the pass begins again.
//
// A set that differs each time is an error. Its last listing would not do: it may lack an undesired element from
// before the listing, which no event reports.
func dump[T any](what string, owned bool, same func(a, b T) bool, list func() (T, error)) (T, error) {
	var last T
	pause := dumpPause
	for try := 1; ; try++ {
		part, err := list()
		interrupted := errors.Is(err, nft.ErrInterrupted)
		switch {
		case err == nil, interrupted && owned, interrupted && try > 1 && same(last, part):
			return part, nil
		case !interrupted, try == listTries:
			return part, wrap(what, err)
		}
		last = part
		<-time.After(pause)
		pause *= 2
	}
}

func deepEqual[T any](a, b T) bool { return reflect.DeepEqual(a, b) }
