package health

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// bindPause is how often a port that cannot be bound is tried again.
const bindPause = 5 * time.Second

// Server serves HTTP on one address. A port that cannot be bound is tried
// again and stops nothing else.
type Server struct {
	// Name says what is served, for the log.
	Name string
	// Address is host:port. Empty or "0": nothing is served.
	Address string
	// Flag is the flag that sets the address, for the log.
	Flag    string
	Handler http.Handler
	Clock   clock.Clock
	Log     logr.Logger
}

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context) {
	if s.Address == "" || s.Address == "0" {
		return
	}
	said := ""
	for {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if err.Error() != said {
			said = err.Error()
			s.Log.Error(err, "Could not serve; trying again every 5 s, everything else goes on. See what holds the port (ss -ltnp), or choose another address", "server", s.Name, "address", s.Address, "flag", s.Flag)
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

// serve listens and serves until ctx is done or that fails.
func (s *Server) serve(ctx context.Context) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", s.Address)
	if err != nil {
		return err
	}
	s.Log.Info("Serving", "server", s.Name, "address", listener.Addr().String())
	server := &http.Server{
		Handler:           s.Handler,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       90 * time.Second,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // what goes wrong, Serve returns
	defer stop()
	return server.Serve(listener)
}
