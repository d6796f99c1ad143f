package userspace

import (
	"errors"
	"os"
	"regexp"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestGrowthOfMemory: neither idle connections nor clients that send a request byte by byte make the process
// large. The clients and the endpoint are bare sockets, so that nearly all of its memory is the proxy's.
func TestGrowthOfMemory(t *testing.T) {
	const connections, most = 10_000, 64 << 20 // of the 200 MB that an agent may have with them
	// Each takes four descriptors here. Of fewer, the memory of so many follows.
	count := min(connections, (allowDescriptors(t, 4*connections+1000)-1000)/4)
	listener, endpoint := boundSocket(t)
	if err := unix.Listen(listener, backlog); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolTCP, endpoint))
	var open []int
	t.Cleanup(func() { // before that of the rig, which looks for sockets that are left
		for _, fd := range open {
			_ = unix.Close(fd)
		}
	})
	before := resident(t)
	for range count {
		client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, client)
		if err := unix.Connect(client, sockaddr(r.served.Ports[0].Cluster[0])); err != nil {
			t.Fatal(err)
		}
		server := patiently(t, listener, func() (int, error) {
			fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
			return fd, err
		})
		open = append(open, server)
		transfer(t, client, server)
		transfer(t, server, client)
	}
	after := resident(t)
	all := before + (after-before)*connections/count
	t.Logf("%d kB before, %d kB with %d connections, so %d kB with %d", before>>10, after>>10, count, all>>10, connections)
	if s := r.statistics(); s.Open != int64(count) || all > most {
		t.Errorf("%d of %d connections are open; %d would take %d MB, more than %d MB", s.Open, count, connections, all>>20, most>>20)
	}
}

// transfer moves one byte from a socket to the one that the proxy has joined with it.
func transfer(t *testing.T, from, to int) {
	t.Helper()
	if _, err := unix.Write(from, []byte{1}); err != nil {
		t.Fatal(err)
	}
	if n := patiently(t, to, func() (int, error) { return unix.Read(to, make([]byte, 1)) }); n != 1 {
		t.Fatalf("%d bytes were transferred", n)
	}
}

// patiently makes a system call that waits for what comes to a socket.
func patiently(t *testing.T, fd int, call func() (int, error)) int {
	t.Helper()
	timeout := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := call()
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// allowDescriptors lets the process have so many file descriptors until the test ends, or as many as it can, and
// returns how many.
func allowDescriptors(t *testing.T, count uint64) int {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	more := unix.Rlimit{Cur: max(limit.Cur, count), Max: max(limit.Max, count)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &more); err != nil {
		more = unix.Rlimit{Cur: limit.Max, Max: limit.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &more); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	})
	return int(more.Cur) //nolint:gosec // small
}

// resident is the process's memory, in bytes.
func resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^VmRSS:\s*(\d+) kB$`).FindSubmatch(text)
	if found == nil {
		t.Fatal("no VmRSS in /proc/self/status")
	}
	kib, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
