package place

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Place is a network namespace.
type Place struct {
	// Name is what its servers answer with.
	Name string

	steps chan func() // nil: that of the caller
	tid   int         // whose namespace it is
}

// New makes an empty network namespace, which goes with the test. Both IP families
// work in it at once, with no limit to ICMP and no checks of sources.
func New(t *testing.T, name string) *Place {
	t.Helper()
	p := &Place{Name: name, steps: make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with this function
		p.tid = unix.Gettid()
		made <- unix.Unshare(unix.CLONE_NEWNET)
		for step := range p.steps {
			step()
		}
	}()
	t.Cleanup(func() { close(p.steps) })
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	p.prepare(t)
	return p
}

// Enter makes a place as New does, and has the calling goroutine in it until that ends.
func Enter(t *testing.T, name string) *Place {
	t.Helper()
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	p := Here(name)
	p.prepare(t)
	return p
}

// Here is the network namespace of the caller.
func Here(name string) *Place { return &Place{Name: name} }

// prepare makes the place the same whatever the machine's defaults are.
func (p *Place) prepare(t *testing.T) {
	t.Helper()
	err := p.Do(func() error {
		for name, value := range map[string]string{
			"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
			"ipv4/conf/all/send_redirects": "0", "ipv4/conf/default/send_redirects": "0",
			"ipv6/conf/all/accept_dad": "0", "ipv6/conf/default/accept_dad": "0",
			"ipv4/icmp_ratelimit": "0", "ipv6/icmp/ratelimit": "0",
			"ipv6/conf/all/disable_ipv6": "0", "ipv6/conf/default/disable_ipv6": "0",
		} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644); err != nil { //nolint:gosec // it exists
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("in %s: %v", p.Name, err)
	}
	p.Run(t, "ip link set lo up")
}

// Do calls f in the place: sockets that it opens and programs that it runs belong
// there, goroutines that it starts do not.
func (p *Place) Do(f func() error) error {
	if p.steps == nil {
		return f()
	}
	done := make(chan error)
	p.steps <- func() { done <- f() }
	return <-done
}

// Run runs commands, of words without spaces, in the place and returns what they
// print. One that fails ends the test.
func (p *Place) Run(t *testing.T, commands ...string) string {
	t.Helper()
	var all strings.Builder
	for _, command := range commands {
		words := strings.Fields(command)
		var out []byte
		err := p.Do(func() (err error) {
			out, err = exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput()
			return err
		})
		if err != nil {
			t.Fatalf("in %s: %s: %v: %s", p.Name, command, err, out)
		}
		all.Write(out)
	}
	return all.String()
}

// Wire joins the place to one by New, where the link is called eth0. Both ends are up.
func (p *Place) Wire(t *testing.T, link string, to *Place) {
	t.Helper()
	p.Run(t,
		fmt.Sprintf("ip link add %s type veth peer name eth0 netns /proc/%d/ns/net", link, to.tid),
		fmt.Sprintf("ip link set %s up", link))
	to.Run(t, "ip link set eth0 up")
}
