package main

import (
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"k8s.io/utils/clock"
)

// jumpingClock is the real clock, but that SIGUSR1 sets it an hour forward and
// SIGUSR2 an hour back. As when a machine's clock is set, only the time of
// day jumps: the monotonic part of times, timers and tickers go on.
type jumpingClock struct {
	clock.RealClock
	hours atomic.Int64
}

func newJumpingClock() *jumpingClock {
	c := &jumpingClock{}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for s := range signals {
			if s == syscall.SIGUSR1 {
				c.hours.Add(1)
			} else {
				c.hours.Add(-1)
			}
		}
	}()
	return c
}

// Now implements clock.PassiveClock. With a monotonic part, bits 30 to 62 of the
// first word of a Time are its seconds.
func (c *jumpingClock) Now() time.Time {
	now := time.Now()
	hour := uint64(time.Hour / time.Second << 30)
	*(*uint64)(unsafe.Pointer(&now)) += uint64(c.hours.Load()) * hour
	return now
}

// Since implements clock.PassiveClock.
func (c *jumpingClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }
