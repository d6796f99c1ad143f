package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// connectTimes measures how long the node takes to connect to an endpoint by its Service and
// directly, and how long a node without a proxy takes, in turn, while the proxy rests: a busy
// moment of the machine concerns all three.
func (s *subject) connectTimes(ctx context.Context) error {
	if _, err := s.settle(ctx); err != nil {
		return err
	}
	var byService, direct, bare []float64
	for round := range 500 {
		// Over some seconds, so that no short load decides.
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
		i := rand.IntN(s.world.services)
		endpoint := netip.AddrPortFrom(netip.MustParseAddr(address(i, 1)), endpointPort)
		turns := []struct {
			node *cluster.Node
			to   netip.AddrPort
			took *[]float64
		}{
			{s.node, s.world.service(i), &byService},
			{s.node, endpoint, &direct},
			{s.bare, endpoint, &bare},
		}
		for turn := range turns {
			one := turns[(round+turn)%len(turns)] // the first is slower than the others
			err := one.node.Do(func() error {
				took, _, err := connect(one.to, connectPatience, false)
				*one.took = append(*one.took, took.Seconds())
				return err
			})
			if err != nil {
				return fmt.Errorf("connecting to %s, Service %s: %w", one.to, serviceName(i), err)
			}
		}
	}
	s.measurements.ConnectService, s.measurements.ConnectDirect, s.measurements.ConnectBare = quantile(byService, .5), quantile(direct, .5), quantile(bare, .5)
	return nil
}

// clients open connections by Services at a steady pace. All endpoints answer, those that have
// gone as well, so that only the rules can make a connection fail.
type clients struct {
	opened atomic.Int64
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu     sync.Mutex // guards the following
	failed []error
	broken error // why one of them has ended early
}

// clientsAtOnce is how many connections can be open: if each fails, so many in churnPatience.
const clientsAtOnce = 16

// startClients opens connections on the node until stop is called.
func (s *subject) startClients(ctx context.Context) *clients {
	ctx, cancel := context.WithCancel(ctx)
	c := &clients{cancel: cancel}
	if s.options.connections == 0 {
		return c
	}
	pause := clientsAtOnce * time.Second / time.Duration(s.options.connections)
	for number := range clientsAtOnce {
		c.group.Go(func() {
			// They take turns.
			begin := time.After(pause * time.Duration(number) / clientsAtOnce)
			err := s.node.Do(func() error {
				select {
				case <-ctx.Done():
					return nil
				case <-begin:
				}
				return c.connectAll(ctx, s.world, pause)
			})
			c.mu.Lock()
			defer c.mu.Unlock()
			c.broken = errors.Join(c.broken, err)
		})
	}
	return c
}

func (c *clients) connectAll(ctx context.Context, w *world, pause time.Duration) error {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		i := w.busy()
		took, _, err := connect(w.service(i), churnPatience, false)
		c.opened.Add(1)
		if err != nil {
			c.mu.Lock()
			c.failed = append(c.failed, fmt.Errorf("%s, Service %s, after %s: %w", time.Now().Format(time.StampMilli), serviceName(i), took, err))
			c.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// stop returns once no connection is opened any more.
func (c *clients) stop() error {
	c.cancel()
	c.group.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return fmt.Errorf("opening connections: %w", c.broken)
	}
	return nil
}

func (c *clients) failures() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.failed)
}
