package dataplane

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// TestWithoutBound: a missing link has no addresses; if the links cannot be read, that is an error.
func TestWithoutBound(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	all := []netip.Addr{loopback, netip.MustParseAddr("192.0.2.1")}
	modes := []Declaration{{BindsAddresses: true, Owns: Owned{Links: []string{"lo", "missing"}}}}
	got, err := withoutBound(slices.Clone(all), modes, net.Interfaces)
	if err != nil || slices.Contains(got, loopback) || !slices.Contains(got, all[1]) {
		t.Errorf("%v, %v", got, err)
	}
	unreadable := errors.New("no buffer space available")
	links := func() ([]net.Interface, error) { return nil, unreadable }
	if got, err := withoutBound(slices.Clone(all), modes, links); !errors.Is(err, unreadable) {
		t.Errorf("unreadable links: %v, %v", got, err)
	}
	modes[0].BindsAddresses = false
	if got, err := withoutBound(slices.Clone(all), modes, links); err != nil || !slices.Equal(got, all) {
		t.Errorf("no mode that binds addresses: %v, %v", got, err)
	}
}
