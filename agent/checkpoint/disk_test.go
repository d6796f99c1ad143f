package checkpoint

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestReadingFromADiskThatHangs(t *testing.T) {
	file, err := New(t.TempDir(), "node-1")
	if err != nil {
		t.Fatal(err)
	}
	clk := clocktesting.NewFakeClock(time.Now())
	d := NewDisk(file, Identity{}, clk, NewMetrics(prometheus.NewRegistry()))
	disk, done := make(chan struct{}), make(chan struct{})
	var first, open, load error
	go func() {
		defer close(done)
		_, first = within(d, func() (int, error) { <-disk; return 1, nil })
		open = d.Open()
		_, load = d.Load()
	}()
	for deadline := time.Now().Add(20 * time.Second); ; {
		if clk.HasWaiters() {
			clk.Step(time.Second)
		}
		if time.Now().After(deadline) {
			t.Fatal("it waits for the disk forever")
		}
		select {
		case <-done:
		default:
			continue
		}
		break
	}
	if !errors.Is(first, errDiskHangs) || !errors.Is(open, errDiskHangs) || !errors.Is(load, errDiskHangs) || d.header != nil {
		t.Errorf("read %v, then %v and %v, header %v", first, open, load, d.header)
	}
	close(disk)
	if got, err := within(d, func() (int, error) { return 2, nil }); got != 2 || err != nil {
		t.Errorf("once the disk answers: %d, %v", got, err)
	}
}
