package dataplane_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// source is where events come from; it notes what becomes of them.
type source struct {
	start  time.Time
	notes  []string
	fails  int // how many of the next subscriptions
	events chan string
}

func (s *source) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf("%v ", time.Since(s.start))+fmt.Sprintf(format, args...))
}

func (s *source) subscribe(<-chan struct{}) (<-chan string, error) {
	if s.fails > 0 {
		s.fails--
		s.note("failed")
		return nil, errors.New("no socket")
	}
	s.events = make(chan string)
	return s.events, nil
}

// TestSubscription: what fails is tried ever more seldom, and what came meanwhile is
// reported once it has succeeded.
func TestSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{start: time.Now(), fails: 8}
		subscription := dataplane.Subscription[string]{
			Clock: clock.RealClock{}, Subscribe: s.subscribe,
			Begun:   func(missed bool) { s.note("begun, missed %t", missed) },
			Event:   func(e string) { s.note("%s", e) },
			Settled: func() { s.note("settled") },
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			subscription.Follow(t.Context())
		}()
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(s.notes, want) {
				t.Errorf("%q\nwant %q", s.notes, want)
			}
			s.start, s.notes = time.Now(), nil
		}
		after := func(d time.Duration) { <-time.After(d) }
		after(4 * time.Minute)
		expect("0s failed", "1s failed", "3s failed", "7s failed", "15s failed", "31s failed", "1m3s failed", "2m3s failed", "3m3s begun, missed true")
		s.events <- "one"
		after(100 * time.Millisecond)
		s.events <- "two"
		after(time.Second)
		expect("0s one", "100ms two", "250ms settled")
		s.fails = 1
		close(s.events)
		after(time.Minute)
		expect("1s failed", "2s begun, missed true")
		close(s.events)
		after(time.Minute)
		expect("1s begun, missed true")
		close(s.events)
	})
}

// TestSettled: events in a short time settle once.
func TestSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{start: time.Now()}
		events := make(chan struct{})
		look := func() { s.note("looked") }
		subscription := dataplane.Subscription[struct{}]{Clock: clock.RealClock{}, Begun: func(bool) { look() }, Settled: look}
		subscription.Subscribe = func(done <-chan struct{}) (<-chan struct{}, error) {
			go func() {
				<-done
				close(events)
			}()
			return events, nil
		}
		go subscription.Follow(t.Context())
		for range 3 {
			events <- struct{}{}
		}
		<-time.After(time.Second)
		synctest.Wait()
		if want := []string{"0s looked", "250ms looked"}; !slices.Equal(s.notes, want) {
			t.Errorf("%q, want %q", s.notes, want)
		}
	})
}
