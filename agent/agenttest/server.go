package agenttest

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
)

// Serve answers at any path and returns its address.
func Serve(t *testing.T, handler http.HandlerFunc) netip.AddrPort {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return AddressOf(s.Listener)
}

// AddressOf returns the address of a listener.
func AddressOf(l net.Listener) netip.AddrPort { return netip.MustParseAddrPort(l.Addr().String()) }
