package leader

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	clocktesting "k8s.io/utils/clock/testing"
)

// heldLock is a Lease that any controller may acquire at any time.
type heldLock struct {
	resourcelock.Interface
	holder string
}

func (l *heldLock) Identity() string { return "a" }

func (l *heldLock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &resourcelock.LeaderElectionRecord{HolderIdentity: l.holder}, nil, nil
}

func (l *heldLock) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	l.holder = r.HolderIdentity
	return nil
}

// TestGateClosesOnceAnotherHoldsTheLease: a deleted Lease is acquired by the first controller that
// tries, while the last renewal of the other one is still fresh.
func TestGateClosesOnceAnotherHoldsTheLease(t *testing.T) {
	clk := clocktesting.NewFakeClock(start)
	g := NewGate(clk)
	held := &heldLock{}
	l := &lock{Interface: held, gate: g, over: func() {}, log: logr.Discard()}
	renew := func() {
		if err := l.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	read := func() {
		if _, _, err := l.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	renew()
	read()
	if !send(t, g, "PUT") {
		t.Fatal("the leader may not write")
	}
	held.holder = "b"
	read()
	if send(t, g, "PUT") {
		t.Error("two controllers may write")
	}
	renew()
	if !send(t, g, "PUT") {
		t.Error("a controller that leads again may not write")
	}
}
