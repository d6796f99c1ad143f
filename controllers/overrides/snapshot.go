package overrides

import (
	"sync"
	"sync/atomic"
)

// snapshot caches what follows from lists until these change.
type snapshot[T any] struct {
	changes atomic.Int64 // seen so far

	mu    sync.Mutex
	upTo  int64 // of changes; guarded by mu
	value *T    // guarded by mu; nil: not read yet
}

// changed notes a change of the lists.
func (s *snapshot[T]) changed() { s.changes.Add(1) }

// current returns the current value, which is only read if the lists have changed since the last
// call. read gets how many changes the value includes.
func (s *snapshot[T]) current(read func(changes int64) (T, error)) (T, error) {
	changes := s.changes.Load() // before the lists are read
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.value == nil || s.upTo < changes {
		value, err := read(changes)
		if err != nil {
			return value, err
		}
		s.value, s.upTo = &value, changes
	}
	return *s.value, nil
}
