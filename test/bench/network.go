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

// answerAll makes the client outside accept connections at every address of
// endpointRange, until the cluster ends, so that each of many thousand endpoints
// can be connected to. It calls answer with one connection after the other.
func answerAll(ctx context.Context, c *cluster.Cluster, answer func(net.Conn)) error {
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
			answer(conn)
		}
	}()
	return nil
}

// answerAddress answers with the endpoint's address.
func answerAddress(conn net.Conn) {
	local, _, _ := strings.Cut(conn.LocalAddr().String(), ":")
	_, _ = io.WriteString(conn, local)
	_ = conn.Close()
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
// returns how long that took and, if it is asked for, who answered.
func connect(to netip.AddrPort, patience time.Duration, ask bool) (time.Duration, string, error) {
	s, took, err := dial(to, patience)
	if err != nil {
		return took, "", err
	}
	defer s.abort()
	if !ask {
		return took, "", nil
	}
	buffer := make([]byte, 64)
	n, err := s.read(buffer)
	return took, string(buffer[:n]), err
}

// socket is a connection used by plain system calls: those of package net take
// longer than what is measured.
type socket int

// dial opens a connection from the calling thread's network namespace, and
// returns how long that took. Nothing done with it may take longer than patience.
func dial(to netip.AddrPort, patience time.Duration) (socket, time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, 0, err
	}
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
	)
	start := time.Now()
	if err == nil {
		err = uninterrupted(func() error {
			return unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
		})
	}
	took := time.Since(start)
	if err != nil {
		_ = unix.Close(fd)
	}
	return socket(fd), took, err
}

// uninterrupted repeats a system call that a signal has interrupted.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// read returns 0 when the other side has closed the connection.
func (s socket) read(to []byte) (n int, err error) {
	err = uninterrupted(func() error {
		n, err = unix.Read(int(s), to)
		return err
	})
	return max(n, 0), err
}

func (s socket) close() { _ = unix.Close(int(s)) }

// abort resets the connection, so that no port stays in use for a minute.
func (s socket) abort() {
	_ = unix.SetsockoptLinger(int(s), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	s.close()
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
