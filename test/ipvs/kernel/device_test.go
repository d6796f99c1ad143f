package kernel

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
)

func (l *lab) expectBound(t *testing.T, exists bool, want ...netip.Addr) {
	t.Helper()
	got, is, err := l.Bound()
	check(t, err)
	slices.SortFunc(got, netip.Addr.Compare)
	if is != exists || !slices.Equal(got, want) {
		t.Errorf("bound %v, %v; want %v, %v", got, is, want, exists)
	}
}

func (l *lab) device(t *testing.T) {
	l.expectBound(t, false)
	if err := l.Bind(l.addr(1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("binding without a device: %v", err)
	}
	check(t, l.Unbind(l.addr(1)), l.DeleteDevice(), l.CreateDevice(), l.CreateDevice())
	l.expectBound(t, true)
	check(t, l.Bind(l.addr(1)), l.Bind(l.addr(2)), l.Bind(l.addr(2)))
	l.expectBound(t, true, l.addr(1), l.addr(2))
	length := pick(l, "/32", "/128")
	out := run(t, "ip -d addr show kube-ipvs0")
	for _, words := range []string{" dummy ", l.addr(1).String() + length + " scope global", "state DOWN"} {
		if !strings.Contains(out, words) {
			t.Errorf("%q is missing:\n%s", words, out)
		}
	}
	for _, words := range []string{"tentative", "deprecated", "<BROADCAST,NOARP,UP", "brd " + l.addr(1).String()} {
		if strings.Contains(out, words) {
			t.Errorf("%q is there:\n%s", words, out)
		}
	}
	// What the kernel gives by itself to an interface that is switched on.
	run(t, "ip link set kube-ipvs0 up")
	run(t, "ip link set kube-ipvs0 down")
	run(t, "ip link set kube-ipvs0 up")
	check(t, l.Bind(l.addr(1)), l.Bind(l.addr(2)))
	l.expectBound(t, true, l.addr(1), l.addr(2))
	check(t, l.Unbind(l.addr(1)), l.Unbind(l.addr(1)))
	l.expectBound(t, true, l.addr(2))

	// Another program deletes it, and makes another one.
	run(t, "ip link del kube-ipvs0")
	check(t, l.Unbind(l.addr(2)))
	l.expectBound(t, false)
	if err := l.Bind(l.addr(1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("binding without a device: %v", err)
	}
	check(t, l.CreateDevice(), l.Bind(l.addr(1)))
	run(t, "ip link del kube-ipvs0")
	run(t, "ip link add kube-ipvs0 type dummy")
	l.expectBound(t, true)
	check(t, l.Bind(l.addr(3)))
	l.expectBound(t, true, l.addr(3))
	run(t, "ip link del kube-ipvs0")
	run(t, "ip link add kube-ipvs0 type dummy")
	check(t, l.Bind(l.addr(3)))
	l.expectBound(t, true, l.addr(3))

	// Of other interfaces.
	run(t, "ip link add other type dummy")
	run(t, "ip addr add "+pick(l, "192.168.0.2/24", "2001:db8:5::2/64")+" dev other")
	run(t, "ip link set other up")
	own := netip.MustParseAddr(pick(l, "192.168.0.2", "2001:db8:5::2"))
	loopback := netip.MustParseAddr(pick(l, "127.0.0.1", "::1"))
	all, err := l.Addresses()
	check(t, err)
	if !slices.Contains(all, own) || !slices.Contains(all, loopback) || slices.Contains(all, l.addr(3)) {
		t.Errorf("addresses %v", all)
	}
	l.yield(t, own)
	for _, a := range all {
		if a.Is4() != own.Is4() {
			t.Errorf("addresses of the other family: %v", all)
		}
	}
	run(t, "ip link del other")
	check(t, l.DeleteDevice())
	run(t, "ip link add kube-ipvs0 type bridge")
	if err := l.CreateDevice(); err == nil || !strings.Contains(err.Error(), "bridge") {
		t.Errorf("with a bridge of that name: %v", err)
	}
	check(t, l.DeleteDevice(), l.DeleteDevice())
	l.expectBound(t, false)
}

// events are reported for changes by others of the device, and of other interfaces.
func (l *lab) events(t *testing.T) {
	check(t, l.CreateDevice())
	done := make(chan struct{})
	events, err := l.Events(done)
	check(t, err)
	expect := func(want ipvs.Event) {
		t.Helper()
		for {
			select {
			case got, open := <-events:
				if got == want {
					return
				}
				if !open {
					t.Fatal("the events have ended")
				}
			case <-time.After(patience):
				t.Fatalf("no event %+v", want)
			}
		}
	}
	length := pick(l, "/32", "/128")
	for range 2 { // another device of the same name has another index
		check(t, l.Bind(l.addr(1)))
		expect(ipvs.Event{Device: true, Addr: l.addr(1)})
		run(t, "ip addr del "+l.addr(1).String()+length+" dev kube-ipvs0")
		expect(ipvs.Event{Device: true, Addr: l.addr(1), Removed: true})
		run(t, "ip addr add "+l.addr(2).String()+length+" dev lo")
		expect(ipvs.Event{Addr: l.addr(2)})
		run(t, "ip addr del "+l.addr(2).String()+length+" dev lo")
		expect(ipvs.Event{Addr: l.addr(2), Removed: true})
		run(t, "ip link del kube-ipvs0")
		expect(ipvs.Event{Device: true, Removed: true})
		run(t, "ip link add kube-ipvs0 type dummy")
	}
	close(done)
	for range events { // until it is closed
	}
	check(t, l.DeleteDevice())
}

// yield has connections outlast the addresses that they need.
func (l *lab) yield(t *testing.T, own netip.Addr) {
	t.Helper()
	source := func(a, want netip.Addr) {
		t.Helper()
		out := run(t, "ip route get "+a.String())
		if !strings.HasPrefix(out, "local ") || !strings.Contains(out, " src "+want.String()+" ") {
			t.Errorf("want local, and source %s: %s", want, out)
		}
	}
	routes := "ip " + pick(l, "-4", "-6") + " route show table local"
	before := run(t, routes)
	check(t, l.Bind(l.addr(1)), l.Bind(l.addr(2)))
	source(l.addr(1), l.addr(1))
	check(t, l.Yield(l.addr(1), own), l.Yield(l.addr(1), own), l.Yield(l.addr(2), own))
	source(l.addr(1), own)
	l.expectBound(t, true, l.addr(3))
	all, err := l.Addresses()
	check(t, err)
	if slices.Contains(all, l.addr(1)) {
		t.Errorf("addresses %v", all)
	}
	check(t, l.Reclaim([]netip.Addr{l.addr(2)}))
	source(l.addr(2), own)
	if out := run(t, routes); strings.Contains(out, l.addr(1).String()+" ") {
		t.Errorf("%s is left:\n%s", l.addr(1), out)
	}
	check(t, l.Bind(l.addr(2)))
	source(l.addr(2), l.addr(2))
	check(t, l.Reclaim(nil), l.Unbind(l.addr(2)), l.Reclaim(nil))
	if after := run(t, routes); after != before {
		t.Errorf("%s\nwas before:\n%s", after, before)
	}
}
