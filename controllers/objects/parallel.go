package objects

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/client-go/util/workqueue"
)

// InParallel calls f for all of so many objects, several at a time. It returns the first error, and
// counts the others.
func InParallel(ctx context.Context, count int, f func(i int) error) error {
	const workers = 8
	var mu sync.Mutex
	var first error
	failed := 0
	workqueue.ParallelizeUntil(ctx, workers, count, func(i int) {
		err := f(i)
		if err == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if failed++; first == nil {
			first = err
		}
	})
	if failed > 1 {
		return fmt.Errorf("%w (and %d more)", first, failed-1)
	}
	return first
}
