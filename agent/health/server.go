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
)

// bindPause is how often a port that cannot be bound is tried again.
const bindPause = 5 * time.Second

// maxConnections is how many connections each address has: its own, so that what
// comes to one keeps none from another.
const maxConnections = 256

// Server serves HTTP on one port. A port that cannot be bound is tried again and
// stops nothing else.
type Server struct {
	// Name says what is served, for the log and the status.
	Name string
	// Address is host:port. One of the loopback addresses stands for those of both
	// IP families, so that nobody else can answer at the other one. Empty or "0":
	// nothing is served.
	Address string
	// Flag is the flag that sets the address, for the log and the status.
	Flag    string
	Handler http.Handler
	Clock   clock.Clock
	Log     logr.Logger
	// Holder says, for people, who has an address that cannot be bound; empty: not
	// known. Nil: nobody is asked.
	Holder func(address string) string
	// Changed is called after Troubles have changed. Nil: nobody is told.
	Changed func()

	mu       sync.Mutex // guards everything below
	troubles map[string]string
}

// Run serves until ctx is done. It may be called again after it has returned.
func (s *Server) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, address := range addresses(s.Address) {
		wg.Go(func() { s.runAt(ctx, address) })
	}
	wg.Wait()
}

// Troubles are the addresses that cannot be bound, for people; one sentence each,
// sorted.
func (s *Server) Troubles() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Values(s.troubles))
}

// addresses are where to listen for a flag.
func addresses(flag string) []string {
	if flag == "" || flag == "0" {
		return nil
	}
	out := []string{flag}
	given, err := netip.ParseAddrPort(flag)
	if err != nil {
		return out
	}
	v4, v6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()
	switch given.Addr() {
	case v4:
		out = append(out, netip.AddrPortFrom(v6, given.Port()).String())
	case v6:
		out = append(out, netip.AddrPortFrom(v4, given.Port()).String())
	}
	return out
}

// runAt serves on one address until ctx is done.
func (s *Server) runAt(ctx context.Context, address string) {
	defer s.note(address, "")
	said := ""
	for {
		err := s.serve(ctx, address)
		if ctx.Err() != nil {
			return
		}
		// A node without the other family has none of its addresses, but may get them.
		if absent := address != s.Address && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)); !absent {
			said = s.failed(address, err, said)
		}
		timer := s.Clock.NewTimer(bindPause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
	}
}

// failed notes that an address is not served, and logs what has not been said yet.
// It returns what is said now.
func (s *Server) failed(address string, err error, said string) string {
	holder := ""
	if s.Holder != nil && errors.Is(err, syscall.EADDRINUSE) {
		holder = s.Holder(address)
	}
	now, details := err.Error(), []any{"server", s.Name, "address", address, "flag", s.Flag}
	if holder != "" {
		now += ": " + holder
		details = append(details, "holder", holder)
	}
	if now != said {
		s.Log.Error(err, "Could not serve; trying again every 5 s, everything else goes on. See what holds the port (ss -ltnpe) and end it, or choose another address", details...)
	}
	s.note(address, fmt.Sprintf("the agent cannot serve %s (%s): %s; what answers there is not the agent: find what holds the port (ss -ltnpe) and end it, the agent tries again every 5 s", s.Name, s.Flag, now))
	return now
}

// note notes the trouble with an address; empty: there is none.
func (s *Server) note(address, trouble string) {
	s.mu.Lock()
	changed := s.troubles[address] != trouble
	if s.troubles == nil {
		s.troubles = map[string]string{}
	}
	if delete(s.troubles, address); trouble != "" {
		s.troubles[address] = trouble
	}
	s.mu.Unlock()
	if changed && s.Changed != nil {
		s.Changed()
	}
}

// serve listens and serves until ctx is done or that fails.
func (s *Server) serve(ctx context.Context, address string) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	s.note(address, "")
	s.Log.Info("Serving", "server", s.Name, "address", listener.Addr().String())
	server := httpport.NewServer(httpport.NewLimit(maxConnections), s.Handler)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // what goes wrong, Serve returns
	defer stop()
	return server.Serve(listener)
}
