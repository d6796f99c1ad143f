package engine

import (
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Isolation writes many Services at a time. If the kernel rejects a batch, it finds those at
// fault and writes the others. Nothing else is written meanwhile, so the number of runs is
// limited; the rest then counts as rejected and is retried later.
type Isolation[P any] struct {
	// Limit bounds the rejected runs, RetryLimit further ones for Services whose rejection was
	// proven before.
	Limit, RetryLimit int
	// Capacity is the maximum size of a batch, and Size an upper bound of that of a Service. A
	// Service of more than LargeSize is written after the others.
	Capacity, LargeSize int
	Size                func(dataplane.ServiceName) int
	// Rejection reports whether an error is the kernel's rejection. Suspects returns which
	// Services of a batch it blames, and the rest.
	Rejection func(error) bool
	Suspects  func(batch []dataplane.ServiceName, err error) (suspects, rest []dataplane.ServiceName)
	// Former are the Services that were rejected before.
	Former map[dataplane.ServiceName]Rejection[P]
	// Rejected are those at fault, Changed the written ones. It adds to both.
	Rejected map[dataplane.ServiceName]Rejection[P]
	Changed  map[dataplane.ServiceName]struct{}
	// Runs counts the rejected runs.
	Runs int

	used map[string]int // rejected runs with Services of one namespace
}

// Write writes Services. Large ones and those that were rejected before come last, so that others
// do not wait for them.
func (p *Isolation[P]) Write(names []dataplane.ServiceName, write func(batch []dataplane.ServiceName) error) error {
	var fresh, large, unproven, proven []dataplane.ServiceName
	sizes := p.sizes(names)
	for _, n := range names {
		switch r, rejected := p.Former[n]; {
		case rejected && r.Proven:
			proven = append(proven, n)
		case rejected:
			unproven = append(unproven, n)
		case sizes[n] > p.LargeSize:
			large = append(large, n)
		default:
			fresh = append(fresh, n)
		}
	}
	for _, part := range [][]dataplane.ServiceName{fresh, unproven, large} {
		if err := p.writeWithin(p.Limit, part, sizes, write); err != nil {
			return err
		}
	}
	return p.writeWithin(p.Runs+p.RetryLimit, proven, sizes, write)
}

// sizes returns the sizes of Services. That of a single one is irrelevant, and takes time.
func (p *Isolation[P]) sizes(names []dataplane.ServiceName) map[dataplane.ServiceName]int {
	out := make(map[dataplane.ServiceName]int, len(names))
	if len(names) > 1 {
		for _, n := range names {
			out[n] = p.Size(n)
		}
	}
	return out
}

// writeWithin writes until limit runs have been rejected in this pass. Then each remaining batch
// is tried once more, as a whole. Namespaces alternate, so that none uses up the limit.
func (p *Isolation[P]) writeWithin(limit int, names []dataplane.ServiceName, sizes map[dataplane.ServiceName]int, write func([]dataplane.ServiceName) error) error {
	queue := batches(names, sizes, p.Capacity)
	for len(queue) > 0 {
		i := p.next(queue)
		batch := queue[i]
		queue = slices.Delete(queue, i, i+1)
		err := write(batch)
		if err == nil {
			for _, name := range batch {
				p.Changed[name] = struct{}{}
			}
			continue
		}
		if !p.Rejection(err) {
			return err
		}
		p.Runs++
		if len(batch) == 1 || p.Runs >= limit {
			p.reject(batch, Rejection[P]{Reason: err.Error(), Proven: len(batch) == 1})
			p.use(batch)
			continue
		}
		if border := namespaceBorder(batch); border > 0 {
			queue = append(queue, batch[:border], batch[border:])
			continue
		}
		p.use(batch)
		if suspects, rest := p.Suspects(batch, err); len(suspects) > 0 && len(rest) > 0 {
			queue = append(queue, rest)
			single := min(len(suspects), limit-p.Runs)
			for i := range single { // each alone, which proves it or not
				queue = append(queue, suspects[i:i+1])
			}
			if single < len(suspects) {
				queue = append(queue, suspects[single:])
			}
			continue
		}
		// Both halves go to the end: a part without a fault is found soon, wherever it is.
		half := len(batch) / 2
		queue = append(queue, batch[:half], batch[half:])
	}
	return nil
}

// next returns the first of the batches whose namespace had the fewest rejected runs.
func (p *Isolation[P]) next(queue [][]dataplane.ServiceName) int {
	best := 0
	for i, batch := range queue {
		if p.used[batch[0].Namespace] < p.used[queue[best][0].Namespace] {
			best = i
		}
	}
	return best
}

// use counts a rejected run for the namespace of a batch.
func (p *Isolation[P]) use(batch []dataplane.ServiceName) {
	if p.used == nil {
		p.used = map[string]int{}
	}
	p.used[batch[0].Namespace]++
}

// reject notes Services as rejected. A proof remains.
func (p *Isolation[P]) reject(names []dataplane.ServiceName, r Rejection[P]) {
	for _, name := range names {
		delete(p.Changed, name)
		if former, ok := p.Former[name]; ok && former.Proven && !r.Proven {
			p.Rejected[name] = former
			continue
		}
		p.Rejected[name] = r
	}
}

// namespaceBorder returns where to split a sorted batch near its middle so that no namespace is
// on both sides; 0: all are of one namespace.
func namespaceBorder(batch []dataplane.ServiceName) int {
	best, half := 0, len(batch)/2
	for i := 1; i < len(batch); i++ {
		if batch[i].Namespace != batch[i-1].Namespace && (best == 0 || i <= half) {
			best = i
		}
	}
	return best
}

// batches splits Services into batches of at most the size of limit, unless one Service is
// larger.
func batches(names []dataplane.ServiceName, sizes map[dataplane.ServiceName]int, limit int) [][]dataplane.ServiceName {
	var out [][]dataplane.ServiceName
	size := 0
	for _, n := range names {
		r := sizes[n]
		if len(out) == 0 || size+r > limit {
			out, size = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], n)
		size += r
	}
	return out
}
