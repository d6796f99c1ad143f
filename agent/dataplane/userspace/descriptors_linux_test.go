package userspace

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// A connection that transfers nothing has its two sockets and no pipe.
func TestIdleConnections(t *testing.T) {
	const count = 300
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolTCP, server(t, func(c *net.TCPConn) {
		b := make([]byte, 1)
		for {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})))
	before := descriptors(t)
	for range count {
		c := r.connect()
		t.Cleanup(func() { _ = c.Close() })
		b := []byte{1}
		_, err := c.Write(b)
		if _, err2 := io.ReadFull(c, b); err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
	}
	// The client's and the server's are in this process, too.
	most := before + 4*count + 2*maxIdlePipes*len(r.engine.(*workers).list)
	if got := descriptors(t); got > most {
		t.Errorf("%d idle connections have %d descriptors, want %d at most", count, got-before, most-before)
	}
}

// fill takes all free descriptors below the highest one, and returns the limit at which there are no more.
func (r *rig) fill(highest int) int {
	r.Helper()
	for {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			r.Fatal(err)
		}
		r.Cleanup(func() { _ = unix.Close(fd) })
		if fd > highest {
			return fd + 1
		}
	}
}

// The process has no file descriptor left: clients are rejected at once, and served again later.
func TestOutOfDescriptors(t *testing.T) {
	r := newRig(t, Options{Workers: 1}, serving(v1alpha1.ProtocolTCP, names(t, 1)...))
	r.shares(1) // the server accepts already, too
	until(t, "a connection stays open", func() bool { return r.Open() == 0 })
	fd, _ := boundSocket(t) // the client's
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}
	defer restore()
	// New descriptors get the lowest free numbers: the spare one has been made before the rig's.
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(r.fill(fd)), Max: limit.Max}); err != nil { //nolint:gosec // not negative
		t.Fatal(err)
	}
	err := unix.Connect(fd, sockaddr(r.served.Ports[0].Cluster[0]))
	if err == nil {
		timeout := unix.NsecToTimeval(patience.Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			t.Fatal(err)
		}
		_, err = unix.Read(fd, make([]byte, 1))
	}
	restore()
	if !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("without a descriptor: %v", err)
	}
	if n := r.table.all()[0].rejected[noDescriptor].Load(); n != 1 {
		t.Errorf("%d connections are counted as rejected for that", n)
	}
	deadline := time.Now().Add(patience)
	for name, err := r.ask(); name != "1"; name, err = r.ask() {
		if time.Now().After(deadline) {
			t.Fatalf("with descriptors again: %q, %v", name, err)
		}
	}
}
