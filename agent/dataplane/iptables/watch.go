package iptables

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Watch implements dataplane.Observer. It begins after the first successful Apply.
func (d *Dataplane) Watch(ctx context.Context, changed func(dataplane.Change)) {
	select {
	case <-ctx.Done():
	case <-d.engine.Begun():
		watchRules(ctx, d.kernel, &d.entries, changed)
	}
}

// subscribePause is the time between attempts to follow the changes.
const subscribePause = time.Second

// watchRules calls changed for changes by others, until ctx is done: by the events
// of the nf_tables kernel, or by the sizes of the legacy one's tables.
func watchRules(ctx context.Context, k kernel, expected *atomic.Pointer[entries], changed func(dataplane.Change)) {
	for {
		// After an error only verifications notice changes.
		_ = k.watch(ctx, expected, changed)
		select {
		case <-ctx.Done():
			return
		case <-time.After(subscribePause):
		}
		changed(dataplane.Change{}) // from before the next attempt
	}
}
