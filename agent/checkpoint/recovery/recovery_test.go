package recovery

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
)

// A write that hangs does not prevent the agent from stopping.
func TestStoppingWhileAWriteHangs(t *testing.T) {
	file, err := checkpoint.New(t.TempDir(), "node-1")
	if err != nil {
		t.Fatal(err)
	}
	clk := clocktesting.NewFakeClock(time.Now())
	r := New(Options{Clock: clk, Log: logr.Discard(), Disk: checkpoint.NewDisk(file, checkpoint.Identity{}, clk, checkpoint.NewMetrics(prometheus.NewRegistry()))})
	run := func(until func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !until(); {
			if time.Now().After(deadline) {
				t.Fatal("it waits for the disk forever")
			}
			if clk.HasWaiters() {
				clk.Step(time.Second)
			}
		}
	}
	hanging, written := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(written)
		r.Disk.Within(time.Hour, func() { close(hanging); <-t.Context().Done() })
	}()
	<-hanging
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Write(ctx) }()
	began := clk.Now()
	run(func() bool { return clk.Since(began) > 2*writeTick })
	stop()
	run(func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
}
