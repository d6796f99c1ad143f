package pacing

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Throttle lets Services pass one by one, with a pause between them. It is in memory: after a restart
// those that wait ask again.
type Throttle struct {
	interval time.Duration

	mu     sync.Mutex // guards everything below
	next   time.Time  // when the next one may pass
	number uint64     // of the last that has asked
	// waiting are the numbers of the Services that wait, in order, and ofService those of all. 0:
	// it may pass.
	waiting   []uint64
	ofService map[types.NamespacedName]uint64
}

// NewThrottle returns a Throttle for a rate.
func NewThrottle(perSecond int) *Throttle {
	return &Throttle{interval: time.Second / time.Duration(perSecond), ofService: map[types.NamespacedName]uint64{}}
}

// Wait returns when a Service must ask again; 0: it may pass, until Done is called.
func (p *Throttle) Wait(key types.NamespacedName, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	number, known := p.ofService[key]
	if known && number == 0 {
		return 0
	}
	if !known {
		p.number++
		number = p.number
		p.ofService[key] = number
		p.waiting = append(p.waiting, number)
	}
	rank, _ := slices.BinarySearch(p.waiting, number)
	// The first to ask when one may pass does: those before it are late.
	if !now.Before(p.next) {
		p.waiting = slices.Delete(p.waiting, rank, rank+1)
		p.ofService[key] = 0
		p.next = now.Add(p.interval)
		return 0
	}
	return p.next.Sub(now) + time.Duration(rank)*p.interval
}

// Done forgets a Service that has passed, or need not.
func (p *Throttle) Done(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	number, known := p.ofService[key]
	if !known {
		return
	}
	delete(p.ofService, key)
	if rank, found := slices.BinarySearch(p.waiting, number); found {
		p.waiting = slices.Delete(p.waiting, rank, rank+1)
	}
}

// NewTerm forgets all Services: those that still wait ask again. The time when the next one may
// pass stays.
func (p *Throttle) NewTerm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = nil
	clear(p.ofService)
}
