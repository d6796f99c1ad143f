package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldOwner owns in managedFields what the controller applies.
const FieldOwner = client.FieldOwner("nodeproxy-controller")

// Written are fingerprints of an object at its last write: if the desired or the stored one
// differs now, it is written again. After a restart, one write changes nothing.
type Written struct{ Desired, Stored uint64 }

// Fingerprint returns a hash of the JSON of a value.
func Fingerprint(of any) (uint64, error) {
	hash, _, err := Measure(of)
	return hash, err
}

// Measure returns a hash of the JSON of a value, and its length.
func Measure(of any) (hash uint64, bytes int, err error) {
	text, err := json.Marshal(of)
	if err != nil {
		return 0, 0, fmt.Errorf("encode %T: %w", of, err)
	}
	h := fnv.New64a()
	_, _ = h.Write(text) // a hash never returns an error
	return h.Sum64(), len(text), nil
}

// InParallel calls f for that many objects, several at a time. It returns the first error and the number of
// others.
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
