package nftables

import (
	"context"
	"errors"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nft"
)

// monitorPause is the time between attempts to subscribe to events.
const monitorPause = time.Second

// monitor receives events. An nft.Monitor does.
type monitor interface {
	Run(ctx context.Context, event func([]byte), lost func()) error
	Close() error
}

// Watch is that of dataplane.Observer. It begins after the first successful Apply.
func (d *Dataplane) Watch(ctx context.Context, changed func(dataplane.Change)) {
	select {
	case <-ctx.Done():
		return
	case <-d.engine.Begun():
	}
	for ctx.Err() == nil {
		// After an error only verifications notice changes, until the next attempt.
		_ = d.watch(ctx, changed)
		select {
		case <-ctx.Done():
		case <-time.After(monitorPause):
		}
	}
}

// watch calls changed for batches of other programs that change the table.
func (d *Dataplane) watch(ctx context.Context, changed func(dataplane.Change)) (err error) {
	m, err := d.openMonitor()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	changed(dataplane.Change{}) // what came before is unknown
	c := config{family: d.family}
	events := nft.Events{Table: c.table()}
	return m.Run(ctx, func(datagram []byte) {
		for commit := range events.Read(datagram) {
			if _, ours := d.ports.Load(commit.Port); !ours {
				changed(dataplane.Change{By: commit.By, Sure: commit.Removed})
			}
		}
	}, func() { changed(dataplane.Change{}) })
}
