package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// apart is the least time between two changes that are measured one by one. kube-proxy
// waits a second between two syncs, nodeproxy 1.5 s at the most.
const apart = 1500 * time.Millisecond

// subject is a proxy on its node while it is measured.
type subject struct {
	options
	*proxy
	world        *world
	progress     *progress
	node         *cluster.Node
	bare         *cluster.Node // another one, without a proxy
	process      *cluster.Process
	metrics      *scraper
	measurements *measurements
}

// firstSync starts the proxy where the kernel has no rules and waits until
// it holds all.
func (s *subject) firstSync(ctx context.Context, command cluster.Command) error {
	start := time.Now()
	var err error
	if s.process, err = s.node.Start(command); err != nil {
		return err
	}
	s.metrics = newScraper(s.proxy, s.node)
	var done syncs
	err = s.until(ctx, s.patience, 200*time.Millisecond, func(now syncs) bool {
		done = now
		return now.full.count > 0 && !now.last.IsZero()
	})
	if err != nil {
		return fmt.Errorf("waiting for the first full sync: %w", err)
	}
	s.measurements.FirstSync = done.full.sum / done.full.count
	s.measurements.FirstSyncWall = done.last.Sub(start).Seconds()
	used, err := s.process.Usage()
	s.measurements.FirstSyncCPU = used.CPU.Seconds()
	s.measurements.FirstSyncResident = used.Resident
	return err
}

// errLate means that something was not seen in time.
var errLate = errors.New("not within")

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
			return fmt.Errorf("%w %s: %w; %s", errLate, limit, errors.Join(ctx.Err(), last), s.process.Tail())
		case <-time.After(pause):
		}
	}
}

// settle waits until there has been no sync for a while, and returns what the
// metrics report then.
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
	if s.measurements.EndpointChanged, err = s.syncTime(ctx, 7, s.world.changeOne, nil); err != nil {
		return err
	}
	if s.measurements.ServiceAdded, err = s.syncTime(ctx, 3, create, remove); err != nil {
		return err
	}
	if err := create(ctx); err != nil {
		return err
	}
	if s.measurements.ServiceRemoved, err = s.syncTime(ctx, 3, remove, create); err != nil {
		return err
	}
	return errors.Join(remove(ctx), s.world.client.Delete(ctx, slice))
}

// churn changes endpoints at a steady pace, opens connections, and measures what that costs and
// how many connections fail. Whatever the proxy does by itself meanwhile is part of it.
func (s *subject) churn(ctx context.Context, controller *cluster.Process) error {
	if _, err := s.settle(ctx); err != nil {
		return err
	}
	before, err := s.look(controller)
	if err != nil {
		return err
	}
	clients := s.startClients(ctx)
	defer func() { _ = clients.stop() }() // if something else fails
	ticker := time.NewTicker(time.Second / time.Duration(s.changes))
	defer ticker.Stop()
	changes := int(s.options.churn.Seconds() * float64(s.changes))
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
	if err := clients.stop(); err != nil {
		return err
	}
	failed := clients.failures()
	s.measurements.Connections, s.measurements.ConnectionsFailed = int(clients.opened.Load()), len(failed)
	for _, err := range failed[:min(len(failed), 5)] {
		s.progress.line("%s: a connection failed: %v", s.name, err)
	}
	s.measurements.ChurnCPU = (after.proxy.CPU - before.proxy.CPU).Seconds()
	s.measurements.ChurnReceived = float64(after.received-before.received) / float64(changes)
	s.measurements.ChurnSent = float64(after.sent-before.sent) / float64(changes)
	s.measurements.Resident, s.measurements.Peak = after.proxy.Resident, after.proxy.Peak
	if controller != nil {
		s.measurements.Controller.ChurnCPU = (after.controller.CPU - before.controller.CPU).Seconds()
		s.measurements.Controller.Resident, s.measurements.Controller.Peak = after.controller.Resident, after.controller.Peak
	}
	return nil
}

// look is what is read at the start and at the end of the churn.
type look struct {
	proxy, controller cluster.Usage
	traffic
}

func (s *subject) look(controller *cluster.Process) (look, error) {
	var l look
	var err error
	if l.proxy, err = s.process.Usage(); err != nil {
		return l, fmt.Errorf("%s: %w", s.name, err)
	}
	if controller != nil {
		if l.controller, err = controller.Usage(); err != nil {
			return l, fmt.Errorf("the controller: %w", err)
		}
	}
	l.traffic, err = readTraffic(s.node)
	return l, err
}

// check makes sure that the kernel has all endpoints, in the mode and variant
// that is measured: nothing else shows that the numbers mean anything.
func (s *subject) check(ctx context.Context, directory string) error {
	command, mark := []string{filepath.Join(directory, "iptables-save"), "-t", "nat"}, "--to-destination 10."
	switch s.mode {
	case v1alpha1.ModeIPVS:
		command, mark = []string{"ipvsadm", "-S", "-n"}, " -m -w 1"
	case v1alpha1.ModeNFTables: // each endpoint is an element
		command, mark = []string{"nft", "list", "table", "ip", s.table}, " . "+strconv.Itoa(endpointPort)
	}
	out, err := s.node.Exec(ctx, command[0], command[1:]...)
	if err != nil {
		return err
	}
	have := strings.Count(out, mark)
	if want := s.world.services*s.world.endpoints + 1; have < want {
		return fmt.Errorf("%s is done, but the kernel has %d of %d endpoints", s.name, have, want)
	}
	return nil
}

// kill ends the proxy and what it has started, such as an nft that would keep a processor busy.
func (s *subject) kill(ctx context.Context) error {
	group := -s.process.PID() // each process of a cluster leads its own
	if err := unix.Kill(group, unix.SIGKILL); err != nil {
		return fmt.Errorf("ending %s: %w", s.name, err)
	}
	<-s.process.Done()
	// A process in the kernel ends once the kernel has done what it was asked for.
	return install.Until(ctx, 10*time.Minute, func(context.Context) error {
		if err := unix.Kill(group, 0); !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("a child of %s is still running: %w", s.name, err)
		}
		return nil
	})
}

// saveLog copies a process's log.
func (o *options) saveLog(process *cluster.Process, name string) error {
	if o.logs == "" || process == nil {
		return nil
	}
	text, err := os.ReadFile(process.Log())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.logs, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.logs, name), text, 0o600)
}

// quantile of values, which it sorts.
func quantile(values []float64, q float64) float64 {
	slices.Sort(values)
	return values[int(q*float64(len(values)-1)+.5)]
}
