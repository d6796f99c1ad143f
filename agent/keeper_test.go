package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// hanging returns an agent, and what moves its clock until something is so.
func hanging(t *testing.T) (a *Agent, run func(until func() bool)) {
	t.Helper()
	a, _ = newRestartable(t).agent(here)
	clk := clocktesting.NewFakeClock(time.Now())
	a.options.Clock, a.keeper.clock, a.keeper.now = clk, clk, clk.Now
	return a, func(until func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !until(); {
			if time.Now().After(deadline) {
				t.Fatal("it waits for the disk for ever")
			}
			if clk.HasWaiters() {
				clk.Step(time.Second)
			}
		}
	}
}

func closed(c <-chan struct{}) func() bool {
	return func() bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
}

func TestReadingFromADiskThatHangs(t *testing.T) {
	a, run := hanging(t)
	disk, done := make(chan struct{}), make(chan struct{})
	var first, second error
	go func() {
		defer close(done)
		_, first = fromDisk(a.keeper, func() (int, error) { <-disk; return 1, nil })
		a.keeper.look()             // Run does
		_, second = a.keeper.load() // a reflector and restoreLoop do
	}()
	run(closed(done))
	if !errors.Is(first, errDiskHangs) || !errors.Is(second, errDiskHangs) || a.keeper.header != nil {
		t.Errorf("read %v, then %v, header %v", first, second, a.keeper.header)
	}
	close(disk)
	if got, err := fromDisk(a.keeper, func() (int, error) { return 2, nil }); got != 2 || err != nil {
		t.Errorf("once the disk answers: %d, %v", got, err)
	}
}

// A write that hangs does not keep the agent from stopping.
func TestStoppingWhileAWriteHangs(t *testing.T) {
	a, run := hanging(t)
	a.keeper.mu.Lock() // as a write does
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.keepLoop(ctx) }()
	run(func() bool { return len(a.keeper.busy) == 1 })
	stop()
	run(closed(done))
	a.keeper.mu.Unlock()
	a.keeper.busy <- struct{}{} // it has ended, too
}
