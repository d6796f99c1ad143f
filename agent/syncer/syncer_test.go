package syncer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
)

// rig runs a Syncer in a synctest bubble, where time passes only while
// everything waits. It notes when what ran, counted from the start.
type rig struct {
	*Syncer
	start time.Time

	mu    sync.Mutex // guards everything below
	log   []string
	fail  int           // how many of the next runs fail
	sound bool          // verifications do not fail
	takes time.Duration // how long a run takes
	load  Load          // of a Sync with all
	// isolates: where that is costly, so is one without.
	isolates bool
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{start: time.Now()}
	run := func(name string) func(context.Context) error {
		return func(context.Context) error {
			r.mu.Lock()
			r.log = append(r.log, name+" "+time.Since(r.start).String())
			takes := r.takes
			r.mu.Unlock()
			time.Sleep(takes) // the bubble's time
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.fail > 0 && !(r.sound && name == "verify") {
				r.fail--
				return errors.New("rejected")
			}
			return nil
		}
	}
	r.Syncer = New(Options{
		Clock: clock.RealClock{}, // the bubble's
		Sync: func(ctx context.Context, all bool) (Load, error) {
			r.mu.Lock()
			name, load := "sync", r.load
			if load.Costly && !all {
				name, load = "small sync", Load{Costly: r.isolates, Left: !r.isolates}
			}
			r.mu.Unlock()
			return load, run(name)(ctx)
		},
		Verify: run("verify"), Check: run("check"),
		MinInterval: time.Second, VerifyInterval: time.Hour,
		RetryMin: 2 * time.Second, RetryMax: 10 * time.Second,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return r
}

// will states how the coming runs go.
func (r *rig) will(fail int, take time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fail, r.takes = fail, take
}

// costs states what the coming changes cost.
func (r *rig) costs(load Load) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.load = load
}

// syncOnlyFails makes verifications succeed.
func (r *rig) syncOnlyFails() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sound = true
}

func (r *rig) ran() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.log)
}

// pass lets d pass and waits until the loop rests.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *rig) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if diff := cmp.Diff(want, r.ran()); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}

func TestFirstChangeAtOnceThenMinimumInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.pass(5 * time.Second)
		r.Trigger()
		r.expect(t, "sync 5s")
		r.Trigger()
		r.Trigger()
		r.pass(100 * time.Millisecond)
		r.Trigger()
		r.pass(10 * time.Second)
		r.expect(t, "sync 5s", "sync 6s")
		r.Trigger()
		r.expect(t, "sync 5s", "sync 6s", "sync 15.1s")
	})
}

func TestMinimumIntervalCountsFromTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.SetIntervals(2*time.Second, time.Hour)
		r.will(0, 3*time.Second)
		r.Trigger()
		r.pass(time.Second)
		r.Trigger() // while the first still runs
		r.pass(10 * time.Second)
		r.expect(t, "sync 0s", "sync 5s")
	})
}

// The first Syncs in a row only keep the minimum interval; the pauses that they owe come after them.
func TestLongSyncsAreFurtherApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.SetIntervals(250*time.Millisecond, time.Hour)
		for _, step := range []struct {
			takes, next, third, fourth time.Duration // how long a sync takes; when the others start
		}{
			{0, 250 * time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond},
			{25 * time.Millisecond, 275 * time.Millisecond, 550 * time.Millisecond, 825 * time.Millisecond},
			{40 * time.Millisecond, 290 * time.Millisecond, 580 * time.Millisecond, 870 * time.Millisecond},
			{60 * time.Millisecond, 310 * time.Millisecond, 620 * time.Millisecond, 930 * time.Millisecond},
			{120 * time.Millisecond, 370 * time.Millisecond, 740 * time.Millisecond, 1360 * time.Millisecond},
			{1200 * time.Millisecond, 1450 * time.Millisecond, 3100 * time.Millisecond, 4900 * time.Millisecond},
			{3 * time.Second, 4 * time.Second, 8500 * time.Millisecond, 13 * time.Second},
		} {
			r.pass(time.Minute)
			start, before := time.Since(r.start), len(r.ran())
			r.will(0, step.takes)
			for range 4 {
				r.Trigger()
				synctest.Wait()
				for running := len(r.ran()); len(r.ran()) == running && time.Since(r.start) < start+step.fourth; {
					r.Trigger()
					r.pass(time.Millisecond)
				}
			}
			r.will(0, 0)
			var want []string
			for _, at := range []time.Duration{0, step.next, step.third, step.fourth} {
				want = append(want, "sync "+(start+at).String())
			}
			if got := r.ran()[before:]; !slices.Equal(got, want) {
				t.Errorf("syncs take %s: got %v, want %v", step.takes, got, want)
			}
		}
	})
}

// What is costly pauses by itself: other changes are written meanwhile, and do not put it off.
func TestCostlyChangesRestAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.SetIntervals(250*time.Millisecond, time.Hour)
		r.costs(Load{Costly: true})
		r.will(0, 600*time.Millisecond)
		r.Trigger()
		r.pass(100 * time.Millisecond)
		r.will(0, 80*time.Millisecond)
		r.Trigger() // a small change, while the costly ones are written, and more of these
		r.pass(800 * time.Millisecond)
		r.expect(t, "sync 0s", "small sync 600ms") // the pause between syncs is over
		r.Trigger()
		r.pass(2 * time.Second)
		// The minimum interval after the end of the one before, as more than that writes leaves it
		// half of the time; and 1.5 s after that of the costly one.
		r.expect(t, "sync 0s", "small sync 600ms", "small sync 930ms", "sync 2.1s")
		r.costs(Load{})
		r.pass(time.Minute)
		r.Trigger()
		r.expect(t, "sync 0s", "small sync 600ms", "small sync 930ms", "sync 2.1s", "sync 1m2.9s")
	})
}

// Small changes that turn out to be costly, again and again, leave the kernel alone half of the time.
func TestSmallChangesThatAreCostly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.SetIntervals(250*time.Millisecond, time.Hour)
		r.costs(Load{Costly: true})
		r.will(0, 800*time.Millisecond)
		r.Trigger()
		r.pass(100 * time.Millisecond)
		r.isolates = true
		for range 4 {
			r.Trigger()
			r.pass(time.Second)
		}
		r.expect(t, "sync 0s", "small sync 800ms", "small sync 2.4s", "small sync 4s")
	})
}

// A costly Sync that leaves a part because a change waits: that change is written at once, and then
// the rest, half of the time.
func TestCostlySyncInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.SetIntervals(250*time.Millisecond, time.Hour)
		r.costs(Load{Costly: true, Left: true})
		r.will(0, 300*time.Millisecond)
		r.Trigger()
		r.pass(260 * time.Millisecond)
		if r.Waiting() {
			t.Error("nothing has changed")
		}
		r.Trigger()
		if !r.Waiting() {
			t.Error("a change waits")
		}
		r.will(0, 20*time.Millisecond)
		r.pass(100 * time.Millisecond)
		r.expect(t, "sync 0s", "small sync 300ms")
		r.costs(Load{Costly: true})
		r.pass(time.Minute)
		r.expect(t, "sync 0s", "small sync 300ms", "sync 600ms")

		r.Trigger()
		r.pass(10 * time.Millisecond)
		r.Trigger()
		if r.Waiting() {
			t.Error("a change waits that could not be written before the minimum interval is over")
		}
	})
}

// Where more waits that is costly than one Sync writes, it goes on half of the time.
func TestMoreCostlyChangesThanOneSyncWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.SetIntervals(250*time.Millisecond, time.Hour)
		r.costs(Load{Costly: true, Left: true})
		r.will(0, 600*time.Millisecond)
		r.Trigger()
		r.pass(2 * time.Second)
		r.expect(t, "sync 0s", "sync 1.2s")
		r.costs(Load{Costly: true})
		r.pass(time.Minute)
		r.expect(t, "sync 0s", "sync 1.2s", "sync 2.4s")
	})
}

func TestBackoffGrowsAndEndsWithSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.will(5, 0)
		r.Trigger()
		r.pass(61 * time.Second)
		r.expect(t, "sync 0s", "sync 2s", "sync 6s", "sync 14s", "sync 24s", "sync 34s")
		r.will(1, 0)
		r.Trigger()
		r.pass(5 * time.Second)
		if want := []string{"sync 1m1s", "sync 1m3s"}; !slices.Equal(r.ran()[6:], want) {
			t.Errorf("after success the backoff begins again: got %v, want %v", r.ran()[6:], want)
		}
	})
}

func TestChangeDoesNotWaitForBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.will(1000, 0)
		r.Trigger()
		r.pass(15 * time.Second)
		r.expect(t, "sync 0s", "sync 2s", "sync 6s", "sync 14s")
		r.Trigger() // the next repeat would be due at 24s
		r.pass(500 * time.Millisecond)
		r.Trigger() // too soon after the last one
		r.pass(4500 * time.Millisecond)
		r.expect(t, "sync 0s", "sync 2s", "sync 6s", "sync 14s", "sync 15s", "sync 16s")

		// The pauses between repeats are as long as the row of failures asks.
		r.pass(20 * time.Second)
		if want := []string{"sync 26s", "sync 36s"}; !slices.Equal(r.ran()[6:], want) {
			t.Errorf("repeats without changes: got %v, want %v", r.ran()[6:], want)
		}
		if o := r.Overdue(); o != 0 {
			t.Errorf("overdue %v while it waits, want 0", o)
		}
	})
}

func TestTriggerAfreshForgetsBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.will(4, 0)
		r.Trigger()
		r.pass(15 * time.Second)
		r.expect(t, "sync 0s", "sync 2s", "sync 6s", "sync 14s")
		r.TriggerAfresh()
		r.expect(t, "sync 0s", "sync 2s", "sync 6s", "sync 14s", "sync 15s")
	})
}

func TestVerification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.pass(time.Hour)
		r.expect(t, "verify 1h0m0s")
		r.SetIntervals(time.Second, 10*time.Minute)
		r.pass(25 * time.Minute)
		r.expect(t, "verify 1h0m0s", "verify 1h10m0s", "verify 1h20m0s")
		r.VerifySoon()
		r.expect(t, "verify 1h0m0s", "verify 1h10m0s", "verify 1h20m0s", "verify 1h25m0s")
		r.pass(10 * time.Minute)
		r.expect(t, "verify 1h0m0s", "verify 1h10m0s", "verify 1h20m0s", "verify 1h25m0s", "verify 1h35m0s")
	})
}

func TestFailedVerificationLeadsToSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.will(1, 0)
		r.pass(time.Hour + time.Minute)
		r.expect(t, "verify 1h0m0s", "sync 1h0m2s")
	})
}

func TestConstantChangeDoesNotStarveVerification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.SetIntervals(time.Second, 30*time.Second)
		for range 600 {
			r.Trigger()
			r.pass(100 * time.Millisecond)
		}
		verified := 0
		for _, l := range r.ran() {
			if l[0] == 'v' {
				verified++
			}
		}
		if verified != 2 {
			t.Errorf("verified %d times in a minute, want 2", verified)
		}
		if len(r.ran()) > 63 {
			t.Errorf("%d runs in a minute, want at most one a second", len(r.ran()))
		}
	})
}

func TestOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.pass(time.Minute)
		if o := r.Overdue(); o != 0 {
			t.Errorf("idle: overdue %v, want 0", o)
		}
		r.will(0, 10*time.Minute)
		r.Trigger()
		r.pass(7 * time.Minute)
		if o := r.Overdue(); o != 7*time.Minute {
			t.Errorf("inside a long run: overdue %v, want 7m", o)
		}
		r.pass(4 * time.Minute)
		if o := r.Overdue(); o != 0 {
			t.Errorf("after it: overdue %v, want 0", o)
		}
	})
}

func TestSlowIsNotStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.will(0, 30*time.Minute)
		r.Trigger()
		for range 7 {
			r.pass(4 * time.Minute)
			if o := r.Overdue(); o != 4*time.Minute {
				t.Errorf("overdue %v, want 4m since the last progress", o)
			}
			r.Progress()
		}
		r.pass(3 * time.Minute)
		if o := r.Overdue(); o != 0 {
			t.Errorf("after it: overdue %v, want 0", o)
		}
	})
}

// What fails may be a part of the whole: the rest is still verified, and what
// fails is still repeated.
func TestFailuresDoNotStarveVerification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.SetIntervals(time.Second, 15*time.Second)
		r.will(1000, 0)
		r.syncOnlyFails()
		r.Trigger()
		r.pass(35 * time.Second)
		r.expect(t, "sync 0s", "sync 2s", "sync 6s", "sync 14s", "verify 15s", "sync 24s", "verify 30s", "sync 34s")
		if o := r.Overdue(); o != 0 {
			t.Errorf("overdue %v while it waits, want 0", o)
		}
	})
}

func TestChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		at := func(d time.Duration) { r.CheckBy(r.start.Add(d)) }
		at(9 * time.Second)
		at(3 * time.Second)
		at(5 * time.Second) // the earliest counts, for all of them
		r.pass(20 * time.Second)
		r.expect(t, "check 3s")

		r.will(3, 0) // two syncs and a check fail; a check waits for no backoff
		r.Trigger()
		r.pass(3 * time.Second)
		at(24 * time.Second)
		r.pass(4 * time.Second)
		r.will(0, 0)
		r.pass(10 * time.Second)
		r.expect(t, "check 3s", "sync 20s", "sync 22s", "check 24s", "sync 32s")
		if r.Overdue() != 0 {
			t.Errorf("overdue by %s", r.Overdue())
		}
	})
}

func TestConstantChecksDoNotStarveTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.SetIntervals(time.Second, 10*time.Second)
		r.will(0, 400*time.Millisecond)
		for range 110 {
			r.CheckBy(time.Now().Add(50 * time.Millisecond))
			r.Trigger()
			r.pass(100 * time.Millisecond)
		}
		counts := map[string]int{}
		for _, line := range r.ran() {
			what, _, _ := strings.Cut(line, " ")
			counts[what]++
		}
		if counts["verify"] != 1 || counts["sync"] < 4 || counts["check"] < 8 {
			t.Errorf("in 11 s: %v", counts)
		}
	})
}
