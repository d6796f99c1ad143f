package watches

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// answerPause is the time between attempts to reach an API server that does not answer at all, plus
// up to as much again at random.
const answerPause = time.Second

// NewInformer makes informers that recover soon after the API server.
func NewInformer(clk clock.Clock) func(toolscache.ListerWatcher, runtime.Object, time.Duration, toolscache.Indexers) toolscache.SharedIndexInformer {
	return func(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		return toolscache.NewSharedIndexInformer(newPersistent(lw, clk), example, resync, indexers)
	}
}

// persistent retries while the API server does not answer. The informer itself would pause for up
// to a minute between attempts, and all nodes would wait for that after an outage. Any answer,
// including an error, goes to the informer, which backs off from an overloaded server.
type persistent struct {
	toolscache.ListerWatcher
	inner toolscache.ListerWatcherWithContext
	clock clock.Clock
}

func newPersistent(lw toolscache.ListerWatcher, clk clock.Clock) *persistent {
	return &persistent{ListerWatcher: lw, inner: toolscache.ToListerWatcherWithContext(lw), clock: clk}
}

// ListWithContext implements toolscache.ListerWithContext.
func (p *persistent) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return try(ctx, p.clock, func() (runtime.Object, error) { return p.inner.ListWithContext(ctx, options) })
}

// WatchWithContext implements toolscache.WatcherWithContext.
func (p *persistent) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return try(ctx, p.clock, func() (watch.Interface, error) { return p.inner.WatchWithContext(ctx, options) })
}

// try calls f until the API server has answered, or ctx is done.
func try[T any](ctx context.Context, clk clock.Clock, f func() (T, error)) (T, error) {
	for {
		out, err := f()
		if err == nil || answered(err) || ctx.Err() != nil {
			return out, err
		}
		select {
		case <-ctx.Done():
			return out, err
		case <-clk.After(wait.Jitter(answerPause, 1)):
		}
	}
}

// answered reports whether an error is an answer of the API server.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}
