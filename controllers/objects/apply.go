package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
)

// FieldOwner owns in managedFields what the controller applies.
const FieldOwner = client.FieldOwner("nodeproxy-controller")

// Applier writes objects that others may change: each if the desired or the stored one differs from
// the last write, and at most once per retry.ApplyPause. After a restart, one write changes nothing.
// It is not for concurrent use.
type Applier struct {
	Clock   clock.PassiveClock
	Metrics *metrics.Metrics

	written map[string]written // by kind and name
	last    map[string]time.Time
}

// written are fingerprints of an object at its last write.
type written struct{ desired, stored uint64 }

// Apply calls write, which returns what is then stored, if it is due. Stored is the object if it
// exists. again is when to retry without any change; 0: never.
func (a *Applier) Apply(kind, name string, stored client.Object, exists bool, desired any, write func() (client.Object, error)) (again time.Duration, err error) {
	id := kind + "/" + name
	next := written{}
	if next.desired, _, err = Measure(desired); err != nil {
		return 0, err
	}
	if exists {
		if next.stored, err = storedFingerprint(stored); err != nil {
			return 0, err
		}
		if a.written[id] == next {
			a.Metrics.Skip(kind)
			return 0, nil
		}
	}
	if wait := a.Pause(id); wait > 0 {
		return wait, nil
	}
	delete(a.written, id)
	if stored, err = write(); err != nil {
		return 0, err
	}
	if next.stored, err = storedFingerprint(stored); err != nil {
		return 0, err
	}
	if a.written == nil {
		a.written = map[string]written{}
	}
	a.written[id] = next
	a.Metrics.Wrote(kind, metrics.OpApply)
	return 0, nil
}

// Pause returns how long an object must not be written again; 0: it may be now, and then must
// pause.
func (a *Applier) Pause(id string) time.Duration {
	if wait := retry.ApplyPause - a.Clock.Since(a.last[id]); wait > 0 {
		return wait
	}
	if a.last == nil {
		a.last = map[string]time.Time{}
	}
	a.last[id] = a.Clock.Now()
	return 0
}

// storedFingerprint is a hash of what users could change in an object.
func storedFingerprint(o client.Object) (hash uint64, err error) {
	var spec any
	switch o := o.(type) {
	case *appsv1.DaemonSet:
		spec = o.Spec
	case *admissionv1.ValidatingAdmissionPolicy:
		spec = o.Spec
	case *admissionv1.ValidatingAdmissionPolicyBinding:
		spec = o.Spec
	}
	hash, _, err = Measure([]any{o.GetUID(), o.GetLabels(), o.GetAnnotations(), o.GetOwnerReferences(), spec})
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
