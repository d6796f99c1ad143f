// Command echo is the server that runs in each pod of a local cluster. On every
// port it is given, over TCP and UDP, it answers each line or datagram with one
// line: its own name and the address of the client as it sees it. A TCP
// connection stays open until the client closes it.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
)

func main() {
	name := flag.String("name", "", "the name to answer with")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: echo -name NAME ADDRESS:PORT/tcp|udp...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := serve(*name, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

// serve answers on all listeners until one of them fails.
func serve(name string, listeners []string) error {
	failed := make(chan error)
	for _, l := range listeners {
		address, protocol, _ := strings.Cut(l, "/")
		switch protocol {
		case "tcp":
			listener, err := net.Listen("tcp", address)
			if err != nil {
				return err
			}
			go func() { failed <- serveTCP(name, listener) }()
		case "udp":
			conn, err := net.ListenPacket("udp", address)
			if err != nil {
				return err
			}
			go func() { failed <- serveUDP(name, conn) }()
		default:
			return fmt.Errorf("%q: want ADDRESS:PORT/tcp or ADDRESS:PORT/udp", l)
		}
	}
	fmt.Println("ready") // whoever started it waits for this line
	return <-failed
}

func serveTCP(name string, listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
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
