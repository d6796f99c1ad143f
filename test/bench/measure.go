package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

const (
	// apart is the least time between two changes that are measured one by one.
	// kube-proxy waits a second between two syncs, nodeproxy 1.5 s at the most.
	apart = 1500 * time.Millisecond
	// changesPerSecond is the pace of the churn.
	changesPerSecond = 10
)

// subject is a proxy on its node while it is measured.
type subject struct {
	options
	*proxy
	world   *world
	node    *cluster.Node
	process *cluster.Process
	metrics *scraper
	figures *figures
}

// firstSync starts the proxy where the kernel holds no rules and waits until
// it holds all.
func (s *subject) firstSync(ctx context.Context, command cluster.Command) error {
	start := time.Now()
	var err error
	if s.process, err = s.node.Start(command); err != nil {
		return err
	}
	s.metrics = newScraper(s.proxy, s.node)
	var done syncs
	err = s.until(ctx, 30*time.Minute, 200*time.Millisecond, func(now syncs) bool {
		done = now
		return now.full.count > 0 && !now.last.IsZero()
	})
	if err != nil {
		return fmt.Errorf("waiting for the first full sync: %w", err)
	}
	s.figures.FirstSync = done.full.sum / done.full.count
	s.figures.FirstSyncWall = done.last.Sub(start).Seconds()
	used, err := readUsage(s.process)
	s.figures.FirstSyncCPU = used.cpu.Seconds()
	s.figures.FirstSyncResident = used.resident
	return err
}

// until looks at the metrics until f is satisfied.
func (s *subject) until(ctx context.Context, limit, pause time.Duration, f func(syncs) bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	for {
		now, err := s.metrics.read(ctx)
		if err == nil && f(now) {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			last = err
		}
		if err := install.Running(s.process); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w; %s", limit, errors.Join(ctx.Err(), last), s.process.Tail())
		case <-time.After(pause):
		}
	}
}

// settle waits until there has been no sync for a while, and returns what the
// metrics say then.
func (s *subject) settle(ctx context.Context) (syncs, error) {
	var last syncs
	since := time.Now()
	err := s.until(ctx, 10*time.Minute, 50*time.Millisecond, func(now syncs) bool {
		if now.count() != last.count() {
			since = time.Now()
		}
		last = now
		return time.Since(since) > apart
	})
	return last, err
}

// syncTime is the median time that the proxy spends in syncs for one change.
// The change is made as often as there are results; undo, if any, in between.
func (s *subject) syncTime(ctx context.Context, times int, change, undo func(context.Context) error) (float64, error) {
	var spent []float64
	before, err := s.settle(ctx)
	if err != nil {
		return 0, err
	}
	for range times {
		if err := change(ctx); err != nil {
			return 0, err
		}
		err := s.until(ctx, time.Minute, 20*time.Millisecond, func(now syncs) bool { return now.count() > before.count() })
		if err != nil {
			return 0, fmt.Errorf("waiting for a sync after a change: %w", err)
		}
		after, err := s.settle(ctx)
		if err != nil {
			return 0, err
		}
		spent = append(spent, after.since(before).Seconds())
		if undo != nil {
			if err := undo(ctx); err != nil {
				return 0, err
			}
			if after, err = s.settle(ctx); err != nil {
				return 0, err
			}
		}
		before = after
	}
	return quantile(spent, .5), nil
}

// singleChanges measures one endpoint changed, one Service added and one
// removed. Of a Service that comes or goes, the EndpointSlice is there before
// and after, so that it is one change.
func (s *subject) singleChanges(ctx context.Context) error {
	extra := s.world.services // the next free index
	slice := s.world.slice(extra, 0)
	if err := s.world.client.Create(ctx, slice); err != nil {
		return err
	}
	create := func(ctx context.Context) error { return s.world.client.Create(ctx, service(extra)) }
	remove := func(ctx context.Context) error { return s.world.client.Delete(ctx, service(extra)) }
	var err error
	if s.figures.EndpointChanged, err = s.syncTime(ctx, 7, s.world.changeOne, nil); err != nil {
		return err
	}
	if s.figures.ServiceAdded, err = s.syncTime(ctx, 3, create, remove); err != nil {
		return err
	}
	if err := create(ctx); err != nil {
		return err
	}
	if s.figures.ServiceRemoved, err = s.syncTime(ctx, 3, remove, create); err != nil {
		return err
	}
	return errors.Join(remove(ctx), s.world.client.Delete(ctx, slice))
}

// firstConnections measures from the write of an EndpointSlice to the first
// connection on its new endpoint.
func (s *subject) firstConnections(ctx context.Context) error {
	probe := netip.AddrPortFrom(netip.MustParseAddr(s.world.probe), 80)
	var took []float64
	for range s.moves {
		// Not in step with anything that happens once a second or so.
		pause := time.After(apart + 100*time.Millisecond + rand.N(time.Second))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause:
		}
		start := time.Now()
		endpoint, err := s.world.moveProbe(ctx)
		if err != nil {
			return err
		}
		at, err := waitForAnswer(ctx, s.node, probe, endpoint)
		if err != nil {
			return fmt.Errorf("%w; %s", err, s.process.Tail())
		}
		took = append(took, at.Sub(start).Seconds())
	}
	s.figures.FirstConnectionP50 = quantile(took, .5)
	s.figures.FirstConnectionP99 = quantile(took, .99)
	return nil
}

// connectTimes measures how long the node takes to connect to an endpoint by
// its Service and directly, in turn, while the proxy rests.
func (s *subject) connectTimes(ctx context.Context) error {
	if _, err := s.settle(ctx); err != nil {
		return err
	}
	var byService, direct []float64
	err := s.node.Do(func() error {
		for range 500 {
			// Over some seconds, so that no short load decides.
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(5 * time.Millisecond):
			}
			i := rand.IntN(s.world.services)
			to := netip.AddrPortFrom(netip.MustParseAddr(s.world.clusterIPs[i]), 80)
			took, _, err := connect(to, false)
			if err != nil {
				return fmt.Errorf("connecting to Service %s: %w", serviceName(i), err)
			}
			byService = append(byService, took.Seconds())
			to = netip.AddrPortFrom(netip.MustParseAddr(address(i, 1)), endpointPort)
			if took, _, err = connect(to, false); err != nil {
				return fmt.Errorf("connecting to an endpoint: %w", err)
			}
			direct = append(direct, took.Seconds())
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.figures.ConnectService, s.figures.ConnectDirect = quantile(byService, .5), quantile(direct, .5)
	return nil
}

// churn changes endpoints at a steady pace and measures what that costs.
// Whatever the proxy does by itself meanwhile is part of it.
func (s *subject) churn(ctx context.Context, controller *cluster.Process) error {
	if _, err := s.settle(ctx); err != nil {
		return err
	}
	before, err := s.look(controller)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(time.Second / changesPerSecond)
	defer ticker.Stop()
	changes := int(s.options.churn.Seconds() * changesPerSecond)
	for range changes {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if err := s.world.changeOne(ctx); err != nil {
			return err
		}
	}
	// Long enough for the last sync; without looking at the metrics, which costs
	// the proxy processor time.
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(2 * apart):
	}
	after, err := s.look(controller)
	if err != nil {
		return err
	}
	s.figures.ChurnCPU = (after.proxy.cpu - before.proxy.cpu).Seconds()
	s.figures.ChurnReceived = float64(after.received-before.received) / float64(changes)
	s.figures.ChurnSent = float64(after.sent-before.sent) / float64(changes)
	s.figures.Resident, s.figures.Peak = after.proxy.resident, after.proxy.peak
	if controller != nil {
		s.figures.Controller.ChurnCPU = (after.controller.cpu - before.controller.cpu).Seconds()
		s.figures.Controller.Resident, s.figures.Controller.Peak = after.controller.resident, after.controller.peak
	}
	return nil
}

// look is what is read at the start and at the end of the churn.
type look struct {
	proxy, controller usage
	traffic
}

func (s *subject) look(controller *cluster.Process) (look, error) {
	var l look
	var err error
	if l.proxy, err = readUsage(s.process); err != nil {
		return l, fmt.Errorf("%s: %w", s.name, err)
	}
	if controller != nil {
		if l.controller, err = readUsage(controller); err != nil {
			return l, fmt.Errorf("the controller: %w", err)
		}
	}
	l.traffic, err = readTraffic(s.node)
	return l, err
}

// check makes sure that the kernel holds all endpoints, in the mode and variant
// that is measured: nothing else shows that the numbers mean anything.
func (s *subject) check(ctx context.Context, directory string) error {
	command, sign := []string{filepath.Join(directory, "iptables-save"), "-t", "nat"}, "--to-destination 10."
	if s.mode == v1alpha1.ModeIPVS {
		command, sign = []string{"ipvsadm", "-S", "-n"}, " -m -w 1"
	}
	out, err := s.node.Exec(ctx, command[0], command[1:]...)
	if err != nil {
		return err
	}
	have := strings.Count(out, sign)
	if want := s.world.services*s.world.endpoints + 1; have < want {
		return fmt.Errorf("%s is done, but the kernel holds %d of %d endpoints", s.name, have, want)
	}
	return nil
}

// saveLog keeps the proxy's log.
func (s *subject) saveLog(name string) error {
	if s.logs == "" || s.process == nil {
		return nil
	}
	text, err := os.ReadFile(s.process.Log())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.logs, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.logs, name+".log"), text, 0o600)
}

// quantile of values, which it sorts.
func quantile(values []float64, q float64) float64 {
	slices.Sort(values)
	return values[int(q*float64(len(values)-1)+.5)]
}
