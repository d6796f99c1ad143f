package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// programmingLimit is how long a change may take until connections show it. It
// is generous, because User-mode Linux has one slow processor: the report prints how
// long each check took.
const programmingLimit = 3 * time.Minute

// expect connects once and wants one of the given servers to answer; any if
// none is given.
func expect(ctx context.Context, from *cluster.Place, network, address string, servers ...string) error {
	return expectWithin(oneTry(ctx), from, network, address, servers...)
}

// expectWithin is expect within ctx's deadline.
func expectWithin(ctx context.Context, from *cluster.Place, network, address string, servers ...string) error {
	answer, err := from.Dial(ctx, network, address)
	if err != nil {
		return err
	}
	if len(servers) > 0 && !slices.Contains(servers, answer.Server) {
		return fmt.Errorf("%s %s from %s: answered by %s, want %s", network, address, from.Name(), answer.Server, strings.Join(servers, " or "))
	}
	return nil
}

// soon is expect within the time that a change may take. It gives up a single
// connection early, so that the time it takes is that of the change.
func soon(ctx context.Context, from *cluster.Place, network, address string, servers ...string) error {
	return install.Until(ctx, programmingLimit, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
		defer cancel()
		return expectWithin(ctx, from, network, address, servers...)
	})
}

// answers wants an answer over TCP and over UDP soon.
func answers(ctx context.Context, from *cluster.Place, address string, servers ...string) error {
	for _, network := range []string{"tcp", "udp"} {
		if err := soon(ctx, from, network, address, servers...); err != nil {
			return err
		}
	}
	return nil
}

// silent expects no answer, whether the packets are rejected or dropped.
func silent(ctx context.Context, from *cluster.Place, network, address string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, err := from.Dial(ctx, network, address)
	switch {
	case err == nil:
		return fmt.Errorf("%s %s from %s: %s answers", network, address, from.Name(), answer.Server)
	case errors.Is(err, cluster.ErrRejected), errors.Is(err, cluster.ErrNoAnswer):
		return nil
	default:
		return err
	}
}

// allSilent expects no answer soon, from any of the places. It tries
// them at the same time, because silence takes its time.
func allSilent(ctx context.Context, targets []target) error {
	results := make(chan error)
	for _, t := range targets {
		go func() {
			results <- install.Until(ctx, programmingLimit, func(ctx context.Context) error {
				return silent(ctx, t.from, "tcp", t.address)
			})
		}()
	}
	var errs []error
	for range targets {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

// target is an address and where to try it from.
type target struct {
	from    *cluster.Place
	address string
}

// rejected expects a rejection, which reaches a client at once, and not silence.
func rejected(ctx context.Context, from *cluster.Place, network, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
	defer cancel()
	answer, err := from.Dial(ctx, network, address)
	switch {
	case err == nil:
		return fmt.Errorf("%s %s from %s: %s answers", network, address, from.Name(), answer.Server)
	case errors.Is(err, cluster.ErrRejected):
		return nil
	default:
		return err
	}
}

// oneTry is for a single connection: the deadline of a longer wait must not
// make one lost connection last as long.
func oneTry(ctx context.Context) context.Context {
	return withoutDeadline{ctx}
}

// withoutDeadline is a context that can be cancelled, but leaves the time that
// a connection may take to cluster.Place.
type withoutDeadline struct{ context.Context }

func (withoutDeadline) Deadline() (time.Time, bool) { return time.Time{}, false }

// tally is how many connections each server got.
type tally map[string]int

func (t tally) String() string {
	var words []string
	for _, server := range slices.Sorted(maps.Keys(t)) {
		words = append(words, fmt.Sprintf("%s %d", server, t[server]))
	}
	return strings.Join(words, ", ")
}

// connect makes count connections over TCP, one after the other. A single one
// that fails is an error.
func connect(ctx context.Context, from *cluster.Place, address string, count int) (tally, error) {
	t := tally{}
	for i := range count {
		answer, err := from.Dial(oneTry(ctx), "tcp", address)
		if err != nil {
			return t, fmt.Errorf("connection %d of %d: %w", i+1, count, err)
		}
		t[answer.Server]++
	}
	return t, nil
}

// onlyTo wants that count connections all go to the given servers, and that
// each of them gets some.
func onlyTo(ctx context.Context, from *cluster.Place, address string, count int, servers ...string) (tally, error) {
	t, err := connect(ctx, from, address, count)
	if err != nil {
		return t, err
	}
	if got := slices.Sorted(maps.Keys(t)); !slices.Equal(got, slices.Sorted(slices.Values(servers))) {
		return t, fmt.Errorf("%d connections to %s from %s went to: %s; want %s", count, address, from.Name(), t, strings.Join(servers, ", "))
	}
	return t, nil
}

// watch connects to address again and again, until stop is called, which
// returns how many connections there were and the first failure.
func watch(ctx context.Context, from *cluster.Place, address string) (stop func() (int, error)) {
	ctx, cancel := context.WithCancel(ctx)
	var made int
	var failure error
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil && failure == nil {
			err := expect(context.WithoutCancel(ctx), from, "tcp", address)
			made++
			failure = from.Cluster().Trace(context.WithoutCancel(ctx), err)
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() (int, error) {
		cancel()
		<-done
		if failure != nil {
			return made, fmt.Errorf("after %d connections that were answered: %w", made-1, failure)
		}
		return made, nil
	}
}
