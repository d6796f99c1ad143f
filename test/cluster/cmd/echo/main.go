package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/sctp"
)

func main() {
	name := flag.String("name", os.Getenv("POD_NAME"), "the name to answer with; over TCP, without one, the address that was connected to")
	drain := flag.Duration("drain", 0, "how long to go on serving after SIGTERM; ends at once without")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: echo [-name NAME] [-drain TIME] ADDRESS:PORT/tcp|udp|sctp|http...")
		flag.PrintDefaults()
	}
	flag.Parse()
	s := &server{name: *name}
	if *drain > 0 {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM) // before it is ready, or a signal would end it at once
		go s.endOnSignal(asked, *drain)
	}
	if err := s.serve(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

// server answers with its name.
type server struct {
	name   string
	http   http.Server
	ending atomic.Bool
}

// endOnSignal ends the program some time after it was asked to.
func (s *server) endOnSignal(asked <-chan os.Signal, drain time.Duration) {
	<-asked
	s.ending.Store(true)
	fmt.Println("ending in", drain)
	<-time.After(drain)
	s.shutDown()
	os.Exit(0)
}

// shutDown closes connections over HTTP that wait for nothing, and answers the
// others first. Clients of the other protocols know when they have finished.
func (s *server) shutDown() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = s.http.Shutdown(ctx)
}

// serve answers on all listeners until one of them fails.
func (s *server) serve(listeners []string) error {
	s.http.Handler = s.handler()
	s.http.ReadHeaderTimeout = 10 * time.Second
	failed := make(chan error)
	for _, l := range listeners {
		address, protocol, _ := strings.Cut(l, "/")
		switch protocol {
		case "tcp", "sctp", "http":
			listen := net.Listen
			if protocol == "sctp" {
				listen = sctp.Listen
			}
			listener, err := listen("tcp", address)
			if err != nil {
				return err
			}
			if protocol != "http" {
				go func() { failed <- serveTCP(s.name, listener) }()
				continue
			}
			go func() {
				if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
					failed <- err
				}
			}()
		case "udp":
			conn, err := net.ListenPacket("udp", address)
			if err != nil {
				return err
			}
			// Datagrams that have arrived must not be lost while the machine has no processor for
			// this one: of small ones the default is full after some 400. The kernel gives what it allows.
			if err := conn.(*net.UDPConn).SetReadBuffer(4 << 20); err != nil {
				return err
			}
			go func() { failed <- serveUDP(s.name, conn) }()
		default:
			return fmt.Errorf("%q: want ADDRESS:PORT/tcp, /udp, /sctp or /http", l)
		}
	}
	fmt.Println("ready") // the parent waits for this line
	return <-failed
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if s.ending.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s\n", s.name, r.RemoteAddr)
	})
	return mux
}

func serveTCP(name string, listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			name := name
			if local, _, err := net.SplitHostPort(conn.LocalAddr().String()); name == "" && err == nil {
				name = local
			}
			for s := bufio.NewScanner(conn); s.Scan(); {
				if _, err := fmt.Fprintf(conn, "%s %s\n", name, conn.RemoteAddr()); err != nil {
					return
				}
			}
		}()
	}
}

func serveUDP(name string, conn net.PacketConn) error {
	buf := make([]byte, 2048)
	for {
		_, client, err := conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		// A client that is gone is no reason to stop answering others.
		_, _ = fmt.Fprintf(packetWriter{conn, client}, "%s %s\n", name, client)
	}
}

// packetWriter writes datagrams to one client.
type packetWriter struct {
	conn   net.PacketConn
	client net.Addr
}

func (w packetWriter) Write(p []byte) (int, error) { return w.conn.WriteTo(p, w.client) }
