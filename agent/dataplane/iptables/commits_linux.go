package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// Commits counts what the data planes of one network namespace have written.
// The nf_tables kernel counts what all programs have written there, so the two show
// at no cost whether another program has changed any rules.
// The zero value is ready for use, by all data planes of a namespace together.
type Commits struct {
	mu  sync.Mutex
	own uint32
	// busy counts writes in progress, which may have been counted or not.
	// Those that overlap are counted together, when the last has ended.
	busy    int
	before  uint32 // the kernel's count when they began
	written uint32 // by those that have ended
	unsure  bool   // some of them may not have been counted as expected
	writers []uint32
	// spans are what the newest writes were counted as, the last one at next-1.
	spans [maxSpans]span
	next  int

	// watches receive transactions while pauses is 0.
	watches map[*eventWatch]struct{}
	pauses  int

	count func() (uint32, error) // of the kernel; nil: generation
}

// span is a range of the kernel's count in which we have written.
type span struct {
	after, upTo uint32
	// alone: no other program has written in it.
	alone bool
	// writers are the processes that wrote for us.
	writers []uint32
}

// maxSpans is how many writes are remembered. The kernel reports each soon
// after it has ended.
const maxSpans = 256

// author is who has written a transaction.
type author int

const (
	others    author = iota
	ourselves        // or our programs
	undecided        // as long as a write of ours is in progress
)

// author returns the author of the transaction that the kernel has counted as
// generation. The port is that of the writer's netlink socket: its process,
// unless it has several. It decides if others have written at the same time.
func (c *Commits) author(generation, port uint32) author {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy > 0 && (c.unsure || generation-c.before-1 < 1<<31) {
		return undecided
	}
	for i := range min(c.next, maxSpans) {
		s := &c.spans[(c.next-1-i)%maxSpans]
		if generation-s.after-1 >= s.upTo-s.after {
			continue
		}
		if s.alone || slices.Contains(s.writers, port) {
			return ourselves
		}
		return others
	}
	return others
}

// run runs a program that writes for us. It is called within write.
func (c *Commits) run(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", cmd.Path, err)
	}
	c.mu.Lock()
	c.writers = append(c.writers, uint32(cmd.Process.Pid)) //nolint:gosec // never negative
	c.mu.Unlock()
	return cmd.Wait()
}

func (c *Commits) counted() (uint32, error) {
	if c.count != nil {
		return c.count()
	}
	return generation()
}

// write calls f, which writes n transactions unless it fails. If the kernel
// counts another number, because one changed nothing or another program has
// written meanwhile, they count as another's: then the rules are read.
func (c *Commits) write(n int, f func() error) error {
	c.mu.Lock()
	if c.busy == 0 {
		before, err := c.counted()
		c.before, c.written, c.unsure, c.writers = before, 0, err != nil, nil
	}
	c.busy++
	c.mu.Unlock()
	err := f()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy--
	c.written += uint32(n) //nolint:gosec // wraps, as the kernel's counter does
	c.unsure = c.unsure || err != nil
	if c.busy == 0 {
		c.ended()
	}
	return err
}

// ended notes what the kernel has counted while we wrote. The caller holds mu.
func (c *Commits) ended() {
	now, err := c.counted()
	if err != nil {
		return
	}
	alone := !c.unsure && now-c.before == c.written
	if alone {
		c.own += c.written
	}
	if now != c.before {
		c.spans[c.next%maxSpans] = span{after: c.before, upTo: now, alone: alone, writers: c.writers}
		c.next++
	}
}

// others returns how many transactions others have written, give or take a constant. The second
// result is false if that is unknown, as while one of ours is in progress.
func (c *Commits) others() (uint32, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy > 0 {
		return 0, false
	}
	all, err := c.counted()
	return all - c.own, err == nil
}

func sections(input string) int { return strings.Count(input, "\nCOMMIT\n") }

// generation is the number of transactions of nf_tables in the calling thread's
// network namespace. It wraps.
func generation() (uint32, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	messages, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return 0, fmt.Errorf("read the generation of nf_tables: %w", err)
	}
	for _, message := range messages {
		for kind, value := range nlattr.All(message[min(len(message), nl.SizeofNfgenmsg):]) {
			if kind == unix.NFTA_GEN_ID && len(value) >= 4 {
				return binary.BigEndian.Uint32(value), nil
			}
		}
	}
	return 0, errors.New("nf_tables does not report its generation")
}

// events reads the transactions, including our own, that change something of ours in a family.
func events(family dataplane.Family, modes *ownership) nft.Events {
	return nft.Events{Family: family.Number(), Touches: modes.touches}
}

func removes(kind uint16) bool {
	return kind == unix.NFT_MSG_DELRULE || kind == unix.NFT_MSG_DELCHAIN || kind == unix.NFT_MSG_DELTABLE
}

// touches reports whether an event reports a change of something of ours. In built-in chains that
// is the removal of our jumps only.
func (o *ownership) touches(kind uint16, body []byte) bool {
	var id chainID
	place := [2]uint16{unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN}
	switch kind {
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		place[1] = unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_DELTABLE:
		place[1] = 0
	default:
		return false
	}
	var expressions []byte
	for kind, value := range nlattr.All(body) {
		switch {
		case kind == place[0]:
			id.table = nlattr.Text(value)
		case kind == place[1]:
			id.name = nlattr.Text(value)
		case kind == unix.NFTA_RULE_EXPRESSIONS:
			expressions = value
		}
	}
	switch {
	case id.table != nat && id.table != filter:
		return false
	case kind == unix.NFT_MSG_DELTABLE || o.own.has(id):
		return true
	case !removes(kind):
		return false
	case slices.Contains(o.joined, id.name):
		return true
	default:
		return hooked[id] && (kind == unix.NFT_MSG_DELCHAIN || expressions == nil || o.namesOurs(expressions))
	}
}
