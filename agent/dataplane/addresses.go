package dataplane

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// eventPause is how long after an event more are waited for. A pod that starts
	// brings several changes of addresses.
	eventPause = 250 * time.Millisecond
	// subscribePause is the time between attempts to subscribe to events.
	subscribePause = time.Second
)

// FollowEvents calls look at the begin of each subscription to events of the
// kernel, and after events, those of a short while taken together, until ctx is
// done. Subscribe returns a channel of events that it closes when done is closed,
// or earlier if the subscription ends, as it does when more events than the
// kernel keeps have not been read; then it is called again.
func FollowEvents(ctx context.Context, subscribe func(done <-chan struct{}) (<-chan struct{}, error), look func()) {
	for ctx.Err() == nil {
		followOnce(ctx, subscribe, look)
		select {
		case <-ctx.Done():
		case <-time.After(subscribePause):
		}
	}
}

func followOnce(ctx context.Context, subscribe func(done <-chan struct{}) (<-chan struct{}, error), look func()) {
	done := make(chan struct{})
	events, err := subscribe(done)
	if err != nil {
		return // a verification finds what has changed
	}
	defer func() {
		close(done)
		for range events { // what is being handed over
		}
	}()
	look() // at what came before the subscription
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-events:
			if !ok {
				return
			}
			if due == nil {
				due = time.After(eventPause)
			}
		case <-due:
			due = nil
			look()
		}
	}
}

// HasFamily returns nil, or an error that wraps ErrUnsupported where the node has
// no IPv6 or has switched it off. It always has IPv4. Proc and sysctl are the
// folders of the proc file system and of sysctls.
func HasFamily(family Family, proc, sysctl string) error {
	if family != IPv6 {
		return nil
	}
	// Of this thread: /proc/net is that of the process's first one.
	if _, err := os.Stat(filepath.Join(proc, "thread-self/net/if_inet6")); err != nil {
		return fmt.Errorf("%w: the node has no IPv6; start its kernel with the module ipv6 and without ipv6.disable=1: %w", ErrUnsupported, err)
	}
	const name = "net/ipv6/conf/all/disable_ipv6"
	if value, err := os.ReadFile(filepath.Join(sysctl, name)); err == nil && strings.TrimSpace(string(value)) == "1" {
		return fmt.Errorf("%w: IPv6 is switched off on the node; set the sysctl %s to 0", ErrUnsupported, strings.ReplaceAll(name, "/", "."))
	}
	return nil
}

// InterfaceAddresses reads the addresses of the node's interfaces, of both
// families, in the network namespace of the calling thread.
func InterfaceAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read the addresses of the node's interfaces: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out, nil
}
