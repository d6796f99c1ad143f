package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

const (
	// Patience is how long an answer may take: long enough that a busy machine
	// is not taken for a fault.
	Patience = 10 * time.Second
	// askEvery is the pause between two questions on a held connection.
	askEvery = 200 * time.Millisecond
	// most bounds how many new connections are under way.
	most = 2000
	// lateness is how long the answer to a datagram is waited for that comes
	// after the one to its repetition.
	lateness = 500 * time.Millisecond
)

// Target is where connections go.
type Target struct {
	// Name is human-readable.
	Name string
	// From is where they begin.
	From *cluster.Place
	// Via names the node by whose rules they go, where that is known.
	Via string
	// Network is tcp or udp, Address the Service's, as Place.Dial takes them.
	Network, Address string
	// Servers may answer; any if nil.
	Servers []string
	// Check, if given, looks at an answer to a new connection begun at a time. It
	// is called by several goroutines.
	Check func(begun time.Time, server string) error
	// NotHeld means that no connection is held, as where servers come and go.
	NotHeld bool
}

// String returns the target in words.
func (t Target) String() string {
	by := ""
	if t.Via != "" {
		by = " by the rules of " + t.Via
	}
	return fmt.Sprintf("%s, from %s%s, %s %s", t.Name, t.From.Name(), by, t.Network, t.Address)
}

// Failure is a connection that failed.
type Failure struct {
	// Begun is when the connection began; of a held one, the question.
	Begun time.Time
	// Took is how long it was until it failed.
	Took time.Duration
	// Held reports whether the connection was held open.
	Held bool
	// Target is where it went.
	Target Target
	// Err is why it failed.
	Err error
}

// String returns the failure in words.
func (f Failure) String() string {
	kind := "new connection"
	if f.Held {
		kind = "held connection"
	}
	return fmt.Sprintf("%s, %s, %s: %v, after %s", f.Begun.Format("15:04:05.000"), kind, f.Target, f.Err, f.Took.Round(time.Millisecond))
}

// Load is connections under way. Its methods may be called concurrently.
type Load struct {
	begun   time.Time
	pace    int
	ctx     context.Context
	stop    context.CancelFunc
	running sync.WaitGroup
	slots   chan struct{}
	pulse   Pulse
	// beats is the pulse's, and goes on until no connection is under way: endBeats ends it.
	beats    sync.WaitGroup
	endBeats context.CancelFunc

	mu       sync.Mutex // guards the following
	targets  []Target
	begins   []time.Time          // of new connections
	answered map[string]time.Time // by target: when the last one was begun that succeeded
	counts   map[string]int       // by network: new connections that succeeded
	slowest  time.Duration        // of those
	plant    error                // of a connection that is fine; nil: none
	failures []Failure
	held     int
	asked    int
}

// Start holds one connection to each target open, and then begins pace new ones a
// second, to the targets in turn, until End or the end of ctx. Of TCP a lost first
// packet is a failure, of UDP a lost first datagram.
func Start(ctx context.Context, pace int, targets []Target) (*Load, error) {
	l := newLoad(ctx, pace)
	if err := l.Add(targets); err != nil {
		l.End()
		return nil, err
	}
	l.begun = time.Now()
	l.running.Go(l.dispatch)
	return l, nil
}

// newLoad is a Load without connections.
func newLoad(ctx context.Context, pace int) *Load {
	beating, endBeats := context.WithCancel(context.WithoutCancel(ctx))
	ctx, stop := context.WithCancel(ctx)
	l := &Load{ctx: ctx, stop: stop, endBeats: endBeats, pace: pace, begun: time.Now(), slots: make(chan struct{}, most),
		answered: map[string]time.Time{}, counts: map[string]int{}, plant: Planted()}
	l.beats.Go(func() { l.pulse.Run(beating) })
	return l
}

// Add takes more targets, each with a held connection.
func (l *Load) Add(targets []Target) error {
	for _, target := range targets {
		if target.NotHeld {
			continue
		}
		conn, err := connect(l.ctx, target)
		if err != nil {
			return fmt.Errorf("%s: %w: %s", target, err, NeverRetried)
		}
		l.mu.Lock()
		l.held++
		l.mu.Unlock()
		l.running.Go(func() {
			defer conn.Close()
			l.hold(target, conn)
		})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.targets = append(l.targets, targets...)
	return nil
}

func connect(ctx context.Context, target Target) (*cluster.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return target.From.Connect(ctx, target.Network, target.Address)
}

// End stops all connections. What is under way is waited for. It may be called
// more than once.
func (l *Load) End() {
	l.stop()
	l.running.Wait()
	l.endBeats()
	l.beats.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.begins) - 1; l.plant != nil && n >= 0 {
		l.failures = append(l.failures, Failure{Begun: l.begins[n], Took: time.Since(l.begins[n]), Target: l.targets[n%len(l.targets)], Err: l.plant})
		l.plant = nil
	}
}

// dispatch begins connections as their times come. Late ones are caught up.
func (l *Load) dispatch() {
	start := time.Now()
	for n := 0; ; n++ {
		due := time.NewTimer(time.Until(start.Add(time.Duration(n) * time.Second / time.Duration(l.pace))))
		select {
		case <-l.ctx.Done():
			due.Stop()
			return
		case <-due.C:
		}
		select {
		case <-l.ctx.Done():
			return
		case l.slots <- struct{}{}:
		}
		l.mu.Lock()
		target := l.targets[n%len(l.targets)]
		l.begins = append(l.begins, time.Now())
		l.mu.Unlock()
		l.running.Go(func() {
			l.one(target)
			<-l.slots
		})
	}
}

// one makes a new connection and notes how it went. What has begun is finished
// after the end.
func (l *Load) one(target Target) {
	var took time.Duration
	begun, err := l.pulse.Try(target.String(), func(begun time.Time) (err error) {
		took, err = target.try(context.WithoutCancel(l.ctx), begun)
		return err
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && os.Getenv(PlantVariable) != plantLast {
		err, l.plant = l.plant, nil
	}
	if err != nil {
		l.failures = append(l.failures, Failure{Begun: begun, Took: time.Since(begun), Target: target, Err: err})
		return
	}
	l.counts[target.Network]++
	l.slowest = max(l.slowest, took)
	if key := target.String(); l.answered[key].Before(begun) {
		l.answered[key] = begun
	}
}

// Try makes one connection, begun now, and asks once.
func (t Target) Try(ctx context.Context) error {
	_, err := t.try(ctx, time.Now())
	return err
}

// try makes one connection and asks once. It returns how long the answer took.
func (t Target) try(ctx context.Context, begun time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	conn, err := t.From.Connect(ctx, t.Network, t.Address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if t.Network == "tcp" {
		if err := conn.FirstArrived(); err != nil {
			return 0, err
		}
	}
	answer, err := conn.Ask(ctx)
	if err != nil {
		return 0, err
	}
	took := time.Since(begun)
	if t.Network == "udp" {
		lost, err := conn.Lost(lateness)
		if err != nil {
			return 0, err
		}
		if lost > 0 {
			return 0, errors.New("its first datagram was lost")
		}
	}
	if t.Servers != nil && !slices.Contains(t.Servers, answer.Server) {
		return 0, fmt.Errorf("%s answers, want one of %q", answer.Server, t.Servers)
	}
	if t.Check != nil {
		return took, t.Check(begun, answer.Server)
	}
	return took, nil
}

// hold keeps one connection open and notes how it goes.
func (l *Load) hold(target Target, conn *cluster.Conn) {
	conn.Hold(l.ctx, askEvery, Patience, func(begun time.Time, err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.asked++
		if err != nil {
			l.failures = append(l.failures, Failure{Begun: begun, Took: time.Since(begun), Held: true, Target: target, Err: err})
		}
	})
}
