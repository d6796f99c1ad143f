package iptables

import (
	"context"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
)

// noteAddresses notes what changes of addresses are to be compared to.
func (d *Dataplane) noteAddresses(c *config) { d.addresses.Note(c.nodePortIPs, c.inNodePortRanges) }

// Follow implements dataplane.Observer: it calls changed when NodePorts have to
// answer on other addresses. Most changes of addresses, such as those of pods,
// have no such effect.
func (d *Dataplane) Follow(ctx context.Context, changed func()) {
	d.addresses.Follow(ctx, clock.RealClock{}, d.subscribe, d.interfaceIPs, changed)
}

// applyAddresses rewrites the rules that depend on the node's addresses if
// those have changed. It reports false if more than that has changed.
func (d *Dataplane) applyAddresses(ctx context.Context, r *dataplane.Ruleset) (bool, error) {
	c, err := d.config(r)
	if err != nil {
		return false, err
	}
	c.terse = d.actual.config.terse // as in any sync that is not full
	d.noteAddresses(c)
	same := *c
	same.nodePortIPs = d.actual.config.nodePortIPs
	if !reflect.DeepEqual(&same, d.actual.config) {
		return false, nil
	}
	old, tail := d.actual.config.nodePortTail(), c.nodePortTail()
	if slices.Equal(old, tail) {
		return true, nil
	}
	var t transaction
	for _, spec := range old {
		t.removeRule(chainID{nat, chainServices}, spec)
	}
	t.appendRules(chainID{nat, chainServices}, tail)
	if err := d.write(ctx, &t); err != nil {
		return false, err
	}
	d.actual.config = c
	d.tally.rules += len(tail) - len(old)
	return true, nil
}

// Watch implements dataplane.Observer. It begins after the first successful Apply.
func (d *Dataplane) Watch(ctx context.Context, changed func(dataplane.Change)) {
	watchRules(ctx, d.engine.Begun(), d.kernel, &d.entries, changed)
}

const subscribePause = time.Second

// watchRules calls changed for changes by others, from begun until ctx is done: by the events
// of the nf_tables kernel, or by the sizes of the legacy one's tables.
func watchRules(ctx context.Context, begun <-chan struct{}, k kernel, expected *atomic.Pointer[entries], changed func(dataplane.Change)) {
	select {
	case <-ctx.Done():
		return
	case <-begun:
	}
	for {
		// After an error only verifications notice changes.
		_ = k.watch(ctx, expected, changed)
		if !pause.For(ctx, clock.RealClock{}, subscribePause) {
			return
		}
		changed(dataplane.Change{}) // from before the next attempt
	}
}
