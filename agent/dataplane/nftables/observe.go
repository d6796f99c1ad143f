package nftables

import (
	"context"
	"errors"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// monitorPause is the time between attempts to subscribe to events.
const monitorPause = time.Second

// monitor receives events. An nft.Monitor does.
type monitor interface {
	Run(ctx context.Context, event func([]byte)) error
	Close() error
}

var _ dataplane.Observer = (*Dataplane)(nil)

// noteAddresses notes the addresses by which the rules are planned.
func (d *Dataplane) noteAddresses(c *config) { d.addresses.Note(c.nodePortIPs, c.nodePortAddresses) }

// Follow implements dataplane.Observer: it calls changed when NodePorts must answer on other
// addresses.
func (d *Dataplane) Follow(ctx context.Context, changed func()) {
	d.addresses.Follow(ctx, clock.RealClock{}, d.subscribe, d.interfaces, changed)
}

// subscribe reports changes of the node's addresses until done is closed or the kernel drops
// events.
func (d *Dataplane) subscribe(done <-chan struct{}) (<-chan struct{}, error) {
	m, err := d.openAddressMonitor()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	events := make(chan struct{})
	go func() {
		defer close(events)
		_ = errors.Join(m.Run(ctx, func([]byte) { events <- struct{}{} }), m.Close()) // another one follows
	}()
	go func() {
		<-done
		cancel()
	}()
	return events, nil
}

// Watch implements dataplane.Observer. It begins after the first successful Apply.
func (d *Dataplane) Watch(ctx context.Context, changed func(dataplane.Change)) {
	select {
	case <-ctx.Done():
		return
	case <-d.engine.Begun():
	}
	for ctx.Err() == nil {
		// After an error only verifications notice changes, until the next attempt.
		if err := d.watch(ctx, changed); errors.Is(err, nft.ErrLost) {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(monitorPause):
		}
	}
}

// watch calls changed for batches of other programs that change the table, and notes them in the journal.
func (d *Dataplane) watch(ctx context.Context, changed func(dataplane.Change)) (err error) {
	m, err := d.openMonitor()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	defer d.journal.end()
	d.journal.begin()
	changed(dataplane.Change{}) // what came before is unknown
	t := (&config{family: d.family}).table()
	events := nft.Events{Family: t.Family, Touches: t.Of, Ours: func(port uint32) bool {
		_, ours := d.ports.Load(port)
		return ours
	}}
	return m.Run(ctx, func(datagram []byte) {
		for commit := range events.Read(datagram) {
			d.journal.note(&commit)
			if !commit.Changes.None() {
				changed(dataplane.Change{By: commit.By, Sure: commit.Removed})
			}
		}
	})
}
