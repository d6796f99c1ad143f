package load

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestStandstill(t *testing.T) {
	start := time.Unix(1e9, 0)
	at := start.Add
	p := &Pulse{}
	for _, beat := range []time.Duration{0, 200, 400, 1000, 4000, 4500, 5000, 9000} { // some late, as on any busy machine
		p.note(at(beat * time.Millisecond))
	}
	for _, c := range []struct{ from, to, want time.Duration }{
		{0, 9500 * time.Millisecond, 7 * time.Second}, {2 * time.Second, 6 * time.Second, 3 * time.Second},
		{0, time.Second, 0}, {9 * time.Second, 9500 * time.Millisecond, 0}, {9 * time.Second, 12 * time.Second, 3 * time.Second},
	} {
		if got := p.still(at(c.from), at(c.to)); got != c.want {
			t.Errorf("from %s to %s: %s, want %s", c.from, c.to, got, c.want)
		}
	}
	for err, want := range map[error]bool{
		fmt.Errorf("no answer: %w", os.ErrDeadlineExceeded): true,
		errors.New("connection refused"):                    false,
	} {
		if isTimeout(err) != want {
			t.Errorf("%v: %t", err, !want)
		}
	}
}

// Only what times out while the machine stands still proves nothing.
func TestStandstillsProveNothing(t *testing.T) {
	begun := time.Unix(1e9, 0)
	for _, c := range []struct {
		still time.Duration
		err   error
		want  bool
	}{
		{tooLong, os.ErrDeadlineExceeded, true}, {tooLong - time.Second, os.ErrDeadlineExceeded, false},
		{tooLong, errors.New("connection refused"), false}, {tooLong, nil, false},
	} {
		p := &Pulse{}
		p.note(begun)
		p.note(begun.Add(c.still))
		if still, got := p.unproven(begun, begun.Add(c.still), c.err); got != c.want || still != c.still {
			t.Errorf("%v, and the machine stood still for %s: %t, %s", c.err, c.still, got, still)
		}
	}
}

// A connection that is under way when the load ends is lost like any other if it is not answered.
func TestEndIsNoStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoad(t.Context(), 1)
		begun := time.Now()
		l.running.Go(func() {
			<-l.ctx.Done()
			<-time.After(Patience) // the bubble's time
			if still := l.pulse.still(begun, time.Now()); still != 0 {
				t.Errorf("the machine is reported to have stood still for %s", still)
			}
		})
		l.End()
	})
}
