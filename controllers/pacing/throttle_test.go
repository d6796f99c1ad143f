package pacing

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func serviceNumber(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("service-%04d", i)}
}

// TestPace has many Services ask at the time of the last answer, and counts those that pass in
// each second.
func TestPace(t *testing.T) {
	const services, perSecond = 500, 50
	p, start := NewThrottle(perSecond), time.Unix(1000, 0)
	asks := map[types.NamespacedName]time.Time{}
	for i := range services {
		asks[serviceNumber(i)] = start
	}
	var passed []time.Time
	for now := start; len(asks) > 0; now = now.Add(time.Millisecond) {
		if now.Sub(start) > time.Minute {
			t.Fatalf("%d still wait after a minute", len(asks))
		}
		for i := range services {
			key := serviceNumber(i)
			if at, waits := asks[key]; !waits || now.Before(at) {
				continue
			}
			wait := p.Wait(key, now)
			if wait > 0 {
				asks[key] = now.Add(wait)
				continue
			}
			if p.Wait(key, now) != 0 {
				t.Fatal("a Service that may pass is delayed")
			}
			delete(asks, key)
			p.Done(key)
			passed = append(passed, now)
		}
	}
	for i := perSecond; i < len(passed); i++ {
		if took := passed[i].Sub(passed[i-perSecond]); took < time.Second {
			t.Fatalf("%d passed within %s", perSecond+1, took)
		}
	}
	if took := passed[len(passed)-1].Sub(start); took > 11*time.Second {
		t.Errorf("all passed after %s only", took)
	}
	if len(p.waiting) != 0 || len(p.ofService) != 0 {
		t.Errorf("left: %d, %d", len(p.waiting), len(p.ofService))
	}
}

// TestPaceForgets Services that need not pass: later ones do not wait for
// them.
func TestPaceForgets(t *testing.T) {
	p, now := NewThrottle(10), time.Unix(1000, 0)
	for i := range 100 {
		p.Wait(serviceNumber(i), now)
	}
	for i := range 99 {
		p.Done(serviceNumber(i))
	}
	p.Done(serviceNumber(5)) // twice
	if got, want := p.Wait(serviceNumber(200), now), 200*time.Millisecond; got != want {
		t.Errorf("waits %s, want %s: behind the one that is left", got, want)
	}
}

// TestPaceInANewTerm: a Service does not wait for those of the term before, but
// two of them still do not pass at once.
func TestPaceInANewTerm(t *testing.T) {
	p, now := NewThrottle(10), time.Unix(1000, 0)
	for i := range 100 {
		p.Wait(serviceNumber(i), now) // the first one passes
	}
	p.NewTerm()
	if len(p.waiting)+len(p.ofService) != 0 {
		t.Errorf("left: %d, %d", len(p.waiting), len(p.ofService))
	}
	for i, want := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond} {
		if got := p.Wait(serviceNumber(200+i), now); got != want {
			t.Errorf("service %d of the new term waits %s, want %s", i, got, want)
		}
	}
	p.Done(serviceNumber(0)) // of the work at hand in the term before
	p.Done(serviceNumber(99))
	if got, want := p.Wait(serviceNumber(0), now), 300*time.Millisecond; got != want {
		t.Errorf("one that had passed in the term before waits %s, want %s", got, want)
	}
}

// TestPaceTakesNamespacesInTurn: how many Services of others wait does not matter to a namespace.
func TestPaceTakesNamespacesInTurn(t *testing.T) {
	p, now := NewThrottle(10), time.Unix(1000, 0)
	for i := range 1000 {
		p.Wait(serviceNumber(i), now)
	}
	for i, want := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, 500 * time.Millisecond} {
		if got := p.Wait(types.NamespacedName{Namespace: "other", Name: fmt.Sprint(i)}, now); got != want {
			t.Errorf("service %d of another namespace waits %s, want %s", i, got, want)
		}
	}
}
