package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
)

func (t *tools) watch(ctx context.Context, expected *atomic.Pointer[entries], changed func(dataplane.Change)) error {
	if t.legacy() {
		return watchEntries(ctx, t.family, expected, changed)
	}
	w := eventWatch{commits: t.commits, events: events(t.family, t.modes), changed: changed}
	return w.run(ctx)
}

const (
	// eventBuffer is how many bytes of events the kernel buffers for us.
	eventBuffer = 4 << 20
	// undecidedPause is the time between checks whether a write of ours has ended
	// while the author of a transaction is unknown.
	undecidedPause = 10 * time.Millisecond
	// maxUndecided is how many transactions may wait for that.
	maxUndecided = 1024
)

// eventWatch follows the transactions of nf_tables that change something of ours.
type eventWatch struct {
	commits *Commits
	events  nft.Events
	changed func(dataplane.Change)

	undecided []nft.Commit
	// lost: events are missing. Flooded: because the buffer was full, so much has changed at once.
	lost, flooded bool
	// baseline is Commits.others of a time up to which all is known.
	baseline uint32

	// What Commits need to let the watch pause. They guard paused, and what is to
	// be the baseline after it.
	file   *os.File
	socket int
	paused struct {
		over  bool
		since uint32
		known bool
	}
}

func (w *eventWatch) run(ctx context.Context) error {
	if err := w.subscribe(); err != nil {
		return err
	}
	defer func() { _ = w.file.Close() }() // nothing is lost by that
	defer context.AfterFunc(ctx, func() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) })()
	w.baseline, w.lost, w.flooded = 0, true, false // what came before is unknown
	if err := w.commits.watch(w); err != nil {
		return err
	}
	defer w.commits.unwatch(w)
	buffer := make([]byte, 64<<10)
	for {
		var deadline time.Time
		if w.waiting() {
			deadline = time.Now().Add(undecidedPause)
		}
		if err := w.file.SetReadDeadline(deadline); err != nil {
			return fmt.Errorf("follow the changes of nf_tables: %w", err)
		}
		// A deadline that was set meanwhile is for one of these.
		if ctx.Err() != nil {
			return nil
		}
		if w.commits.resumed(w) {
			w.judge()
			continue
		}
		n, err := w.file.Read(buffer)
		switch {
		case err == nil:
			for c := range w.events.Read(buffer[:n]) {
				w.undecided = append(w.undecided, c)
			}
		case errors.Is(err, unix.ENOBUFS):
			w.events.Lost()
			w.lost, w.flooded = true, true
		case errors.Is(err, os.ErrDeadlineExceeded):
		default:
			return fmt.Errorf("follow the changes of nf_tables: %w", err)
		}
		w.judge()
	}
}

// waiting reports whether something waits for the end of a write of ours.
func (w *eventWatch) waiting() bool { return w.lost || len(w.undecided) > 0 }

// judge reports transactions of others. It is sure of one that has removed something,
// and also after a flood, as when a table of
// many rules is flushed: that must not wait as mere suspicion may.
func (w *eventWatch) judge() {
	if !w.waiting() {
		return
	}
	byOthers, change := false, dataplane.Change{}
	open := w.undecided[:0]
	for _, c := range w.undecided {
		switch w.commits.author(c.Generation, c.Port) {
		case undecided:
			open = append(open, c)
		case others:
			byOthers, change.By, change.Sure = true, c.By, change.Sure || c.Removed
		}
	}
	w.undecided = open
	if len(open) > maxUndecided {
		w.undecided, w.lost, w.flooded = nil, true, true
	}
	if w.lost {
		now, known := w.commits.others()
		if known {
			if now != w.baseline {
				byOthers, change.Sure = true, change.Sure || w.flooded
			}
			w.baseline, w.lost, w.flooded = now, false, false
		}
	}
	if byOthers {
		w.changed(change)
	}
}

// subscribe opens a socket of the calling thread's network namespace that
// receives the events of nf_tables.
func (w *eventWatch) subscribe() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("follow the changes of nf_tables: %w", err)
	}
	w.file, w.socket = os.NewFile(uintptr(fd), "nf_tables events"), fd
	// Without permission the usual size is enough: losses are noticed.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventBuffer)
	if err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		_ = w.file.Close() // nothing is lost by that
		return fmt.Errorf("follow the changes of nf_tables: %w", err)
	}
	return nil
}

func (w *eventWatch) listen(on bool) error {
	option := unix.NETLINK_DROP_MEMBERSHIP
	if on {
		option = unix.NETLINK_ADD_MEMBERSHIP
	}
	if err := unix.SetsockoptInt(w.socket, unix.SOL_NETLINK, option, unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("follow the changes of nf_tables: %w", err)
	}
	return nil
}

// watch begins to report transactions to w.
func (c *Commits) watch(w *eventWatch) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watches == nil {
		c.watches = map[*eventWatch]struct{}{}
	}
	c.watches[w] = struct{}{}
	if c.pauses > 0 {
		return nil // until that is over
	}
	return w.listen(true)
}

// unwatch ends that. The socket of w may be closed afterwards.
func (c *Commits) unwatch(w *eventWatch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.watches, w)
}

// unwatched runs do while no watch receives transactions: the kernel would describe each rule that
// is written to all of them, which takes a fifth of the
// time that writing takes. Afterwards they check whether others have written.
func (c *Commits) unwatched(do func() error) error {
	c.mu.Lock()
	c.pauses++
	if c.pauses == 1 {
		all, err := c.counted()
		for w := range c.watches {
			_ = w.listen(false) // if it fails, it only costs time
			w.paused.since, w.paused.known = all-c.own, err == nil && c.busy == 0
		}
	}
	c.mu.Unlock()
	err := do()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pauses--
	if c.pauses > 0 {
		return err
	}
	for w := range c.watches {
		if w.listen(true) != nil {
			_ = w.file.Close() // which ends the watch; another one follows
		}
		w.paused.over = true
		_ = w.file.SetReadDeadline(time.Unix(1, 0)) // wakes it up
	}
	return err
}

// resumed reports whether a pause has ended since it was last called.
func (c *Commits) resumed(w *eventWatch) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !w.paused.over {
		return false
	}
	w.paused.over, w.lost = false, true
	if w.paused.known {
		w.baseline = w.paused.since
	}
	return true
}

func (t *tools) unwatched(do func() error) error {
	if t.legacy() {
		return do()
	}
	return t.commits.unwatched(do)
}

// canaryPause is the time between checks of the legacy variant's tables.
const canaryPause = 250 * time.Millisecond

func (t *tools) entries() (int, bool) {
	if !t.legacy() {
		return 0, false
	}
	socket, err := openTables(t.family)
	if err != nil {
		return 0, false
	}
	defer func() { _ = unix.Close(socket.fd) }() // nothing is lost by that
	infos, err := socket.infos()
	return total(infos), err == nil
}

func total(infos [2]tableInfo) int { return int(infos[0].numEntries + infos[1].numEntries) }

// tableInfo is what the legacy kernel reports about a table: struct ipt_getinfo, which
// is that of ip6tables too.
type tableInfo struct {
	name       [32]byte
	validHooks uint32
	hookEntry  [5]uint32
	underflow  [5]uint32
	numEntries uint32
	size       uint32
}

// getInfo is the socket option that reads a tableInfo: IPT_SO_GET_INFO and
// IP6T_SO_GET_INFO.
const getInfo = 64

// watchEntries compares the sizes of the legacy kernel's tables to what they
// should be, until ctx is done. That is cheap, however many rules there are.
// Replacements of the same size between two checks are left to
// verifications.
func watchEntries(ctx context.Context, family dataplane.Family, expected *atomic.Pointer[entries], changed func(dataplane.Change)) error {
	socket, err := openTables(family)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket.fd) }() // nothing is lost by that
	var c canary
	for pause.For(ctx, clock.RealClock{}, canaryPause) {
		before := expected.Load()
		if before == nil {
			continue // unknown, as while we write
		}
		now, err := socket.infos()
		if err != nil {
			return err
		}
		if expected.Load() != before {
			continue // we have written meanwhile
		}
		if change, dead := c.compare(before, now); dead {
			changed(change)
		}
	}
	return nil
}

type canary struct {
	expected *entries
	last     [2]tableInfo
}

// compare reports whether another program has changed the tables since its last call, or since
// other entries are expected.
func (c *canary) compare(expected *entries, now [2]tableInfo) (dataplane.Change, bool) {
	first := c.expected != expected
	same := !first && c.last == now
	c.expected, c.last = expected, now
	if same || first && total(now) == expected.total {
		return dataplane.Change{}, false
	}
	return dataplane.Change{Sure: total(now) < expected.ours}, true
}

// tablesSocket is a socket by which the legacy variant's tables are read.
type tablesSocket struct {
	fd    int
	level uintptr
}

func openTables(family dataplane.Family) (tablesSocket, error) {
	domain, level := unix.AF_INET, unix.IPPROTO_IP
	if family == dataplane.IPv6 {
		domain, level = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return tablesSocket{}, fmt.Errorf("watch the tables of iptables: %w", err)
	}
	return tablesSocket{fd: fd, level: uintptr(level)}, nil
}

// infos reads what the kernel reports about the tables nat and filter.
func (s tablesSocket) infos() ([2]tableInfo, error) {
	var out [2]tableInfo
	for i, t := range []table{nat, filter} {
		copy(out[i].name[:], t)
		size := uint32(unsafe.Sizeof(out[i]))
		_, _, code := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), s.level, getInfo,
			uintptr(unsafe.Pointer(&out[i])), uintptr(unsafe.Pointer(&size)), 0)
		if code != 0 {
			return out, fmt.Errorf("watch the table %s of iptables: %w", t, code)
		}
	}
	return out, nil
}
