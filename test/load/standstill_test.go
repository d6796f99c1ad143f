package load

import (
	"errors"
	"fmt"
	"os"
	"strings"
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

// Few connections are repeated, however long the machine stands still.
func TestStandstillsProveNothing(t *testing.T) {
	p := &Pulse{}
	for range maxExplained {
		if err := p.explain("web", 3*time.Second, os.ErrDeadlineExceeded); err != nil {
			t.Error(err)
		}
	}
	err := p.explain("web", 3*time.Second, os.ErrDeadlineExceeded)
	if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "the machine stood still for 3s") {
		t.Errorf("one too many: %v", err)
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
