package watches

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// TestInformersAreBackSoon: whatever the length of an outage, what follows it is
// seen within two seconds.
func TestInformersAreBackSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		until := begun.Add(10*time.Minute + 300*time.Millisecond)
		failure := errors.New("dial tcp 192.0.2.1:6443: connect: connection refused")
		p := newPersistent(&toolscache.ListWatch{
			ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
				if time.Now().Before(until) {
					return nil, failure
				}
				return &corev1.ServiceList{}, nil
			},
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				return nil, apierrors.NewTooManyRequestsError("later")
			},
		}, clock.RealClock{})
		if _, err := p.ListWithContext(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if late := time.Since(until); late < 0 || late > 2*answerPause {
			t.Errorf("listed %s after the API server was back", late)
		}
		now := time.Now()
		if _, err := p.WatchWithContext(t.Context(), metav1.ListOptions{}); !apierrors.IsTooManyRequests(err) || !time.Now().Equal(now) {
			t.Errorf("an answer of the API server is not handed on at once: %v after %s", err, time.Since(now))
		}
		until = time.Now().Add(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := p.ListWithContext(ctx, metav1.ListOptions{}); !errors.Is(err, failure) {
			t.Errorf("after its time: %v", err)
		}
	})
}
