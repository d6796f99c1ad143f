package health

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/httpport"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
)

// bindPause is the pause between attempts to bind a port.
const bindPause = 5 * time.Second

// maxConnections bounds the connections of each address, so that clients of one cannot block
// those of another.
const maxConnections = 256

// Server serves HTTP on one port. It retries a port that cannot be bound.
type Server struct {
	// Name is what it serves, for the log and the status.
	Name string
	// Address is host:port. A loopback address means those of both IP families, so that no
	// other program can answer at the other one. Empty or "0": nothing is served.
	Address string
	// Flag is the flag that sets the address, for the log and the status.
	Flag    string
	Handler http.Handler
	Clock   clock.Clock
	Log     logr.Logger
	// Holder returns, human-readable, which program has an address that cannot be bound; empty:
	// it is unknown.
	Holder func(address string) string
	// Changed is called after Problems has changed.
	Changed func()

	mu       sync.Mutex // guards everything below
	problems map[string]string
}

// Run serves until ctx is done. It may be called again after it has returned.
func (s *Server) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, address := range addresses(s.Address) {
		wg.Go(func() { s.runAt(ctx, address) })
	}
	wg.Wait()
}

// Problems describes the addresses that cannot be bound, one human-readable sentence each, sorted.
func (s *Server) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Values(s.problems))
}

// addresses are where to listen for a flag.
func addresses(flag string) []string {
	if flag == "" || flag == "0" {
		return nil
	}
	v4, v6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	given, _ := netip.ParseAddrPort(flag) // else it is no loopback address
	switch given.Addr() {
	case v4:
		return []string{flag, netip.AddrPortFrom(v6, given.Port()).String()}
	case v6:
		return []string{flag, netip.AddrPortFrom(v4, given.Port()).String()}
	}
	return []string{flag}
}

// runAt serves on one address until ctx is done.
func (s *Server) runAt(ctx context.Context, address string) {
	defer s.setProblem(address, "")
	logged := ""
	for {
		err := s.serve(ctx, address)
		if ctx.Err() != nil {
			return
		}
		// A node without the other family has none of its addresses, but may get them.
		if unavailable := address != s.Address && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)); !unavailable {
			logged = s.failed(address, err, logged)
		}
		pause.For(ctx, s.Clock, bindPause)
	}
}

// failed records that an address is not served, and logs that unless it has been logged. It
// returns what has been logged.
func (s *Server) failed(address string, err error, logged string) string {
	text, details := err.Error(), []any{"server", s.Name, "address", address, "flag", s.Flag}
	if s.Holder != nil && errors.Is(err, syscall.EADDRINUSE) {
		if holder := s.Holder(address); holder != "" {
			text += ": " + holder
			details = append(details, "holder", holder)
		}
	}
	if text != logged {
		s.Log.Error(err, "Could not serve; retrying every 5 s", details...)
	}
	s.setProblem(address, fmt.Sprintf("the agent cannot serve %s (%s): %s; another program answers there: find the program that has the port (ss -ltnpe) and stop it, the agent retries every 5 s", s.Name, s.Flag, text))
	return text
}

// setProblem sets the problem of an address; empty: there is none.
func (s *Server) setProblem(address, problem string) {
	s.mu.Lock()
	changed := s.problems[address] != problem
	if s.problems == nil {
		s.problems = map[string]string{}
	}
	if delete(s.problems, address); problem != "" {
		s.problems[address] = problem
	}
	s.mu.Unlock()
	if changed && s.Changed != nil {
		s.Changed()
	}
}

// serve listens and serves until ctx is done or an error occurs.
func (s *Server) serve(ctx context.Context, address string) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s.setProblem(address, "")
	s.Log.Info("Serving", "server", s.Name, "address", listener.Addr().String())
	server := httpport.NewServer(httpport.NewLimit(maxConnections), s.Handler)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // Serve returns the error
	defer stop()
	return server.Serve(listener)
}
