package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// answerAll makes the client outside answer at every address of endpointRange
// with that address, until the cluster ends, so that each of many thousand
// endpoints can be connected to.
func answerAll(ctx context.Context, c *cluster.Cluster) error {
	if _, err := c.Outside().Exec(ctx, "ip", "route", "add", "local", endpointRange, "dev", "lo"); err != nil {
		return err
	}
	var listener net.Listener
	err := c.Outside().Do(func() (err error) {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp4", ":"+strconv.Itoa(endpointPort))
		return err
	})
	if err != nil {
		return fmt.Errorf("listening for all endpoints: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			local, _, _ := strings.Cut(conn.LocalAddr().String(), ":")
			_, _ = io.WriteString(conn, local)
			_ = conn.Close()
		}
	}()
	return nil
}

// routeToEndpoints makes a node send what is for endpoints to where they answer.
func routeToEndpoints(ctx context.Context, node *cluster.Node) error {
	_, err := node.Exec(ctx, "ip", "route", "add", endpointRange, "via", outsideAddress)
	return err
}

// outsideAddress is that of the client outside.
const outsideAddress = "172.20.0.200"

// connectPatience is how long a connection may take, except in the churn, where one whose
// first packet is lost has failed: the second follows after 1 s.
const (
	connectPatience = 2 * time.Second
	churnPatience   = 900 * time.Millisecond
)

// connect opens a connection from the calling thread's network namespace and
// returns how long that took and, if it is asked for, who answered. It uses
// plain system calls: those of package net take longer than what is measured.
func connect(to netip.AddrPort, patience time.Duration, ask bool) (time.Duration, string, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, "", err
	}
	defer unix.Close(socket)
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		// No port stays in use for a minute after a connection.
		unix.SetsockoptLinger(socket, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
	)
	if err != nil {
		return 0, "", err
	}
	start := time.Now()
	for {
		err = unix.Connect(socket, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	took := time.Since(start)
	if err != nil || !ask {
		return took, "", err
	}
	buffer := make([]byte, 64)
	for {
		n, err := unix.Read(socket, buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return took, string(buffer[:max(n, 0)]), err
	}
}

// waitForAnswer connects again and again until an endpoint answers, and returns
// when that connection was established.
func waitForAnswer(ctx context.Context, node *cluster.Node, service netip.AddrPort, endpoint string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var at time.Time
	return at, node.Do(func() error {
		// It must not wait for a processor behind those that it observes.
		thread := unix.Gettid()
		usual, err := unix.Getpriority(unix.PRIO_PROCESS, thread) // 20 minus the nice value
		if err != nil {
			return err
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, thread, -10); err != nil {
			return fmt.Errorf("raising the priority of a thread: %w", err)
		}
		defer func() { _ = unix.Setpriority(unix.PRIO_PROCESS, thread, 20-usual) }()
		for {
			begin := time.Now()
			took, who, err := connect(service, connectPatience, true)
			if err == nil && who == endpoint {
				at = begin.Add(took)
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("no connection to %s of Service %s: %w", endpoint, service, ctx.Err())
			case <-time.After(time.Millisecond):
			}
		}
	})
}

// traffic is what a node's link to the API server has carried, in bytes.
type traffic struct{ received, sent uint64 }

// readTraffic reads the counters of a node's link.
func readTraffic(node *cluster.Node) (traffic, error) {
	var text []byte
	err := node.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	})
	if err != nil {
		return traffic{}, err
	}
	return parseTraffic(string(text), "eth0")
}

// parseTraffic finds a link's counters in a /proc/net/dev.
func parseTraffic(text, link string) (traffic, error) {
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields := strings.Fields(rest)
		if name != link || len(fields) < 16 {
			continue
		}
		received, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil {
			return traffic{}, err
		}
		sent, err := strconv.ParseUint(fields[8], 10, 64)
		return traffic{received, sent}, err
	}
	return traffic{}, fmt.Errorf("no link %s in /proc/net/dev", link)
}
