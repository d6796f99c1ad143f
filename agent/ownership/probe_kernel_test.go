package ownership

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/sockets"
	"github.com/nodeproxy-io/nodeproxy/test/place"
)

// serveProxy answers in a place as kube-proxy does, as a process of that user, until
// the test ends.
func serveProxy(t *testing.T, in *place.Place, uid int, network, address string) {
	t.Helper()
	var l net.Listener
	err := in.Do(func() (err error) {
		if err := unix.Setfsuid(uid); err != nil { // of the thread
			return err
		}
		l, err = net.Listen(network, address)
		return errors.Join(err, unix.Setfsuid(0))
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			_, _ = w.Write([]byte(`{"lastUpdated": "2026-11-20T09:00:00Z","currentTime": "2026-11-20T09:00:00Z"}`))
			return
		}
		_, _ = w.Write([]byte("iptables"))
	})}
	go func() { _ = server.Serve(l) }()      // until it is closed
	t.Cleanup(func() { _ = server.Close() }) // nothing is lost by that
}

// TestOnlyRootIsAProxy asks the real kernel who answers.
func TestOnlyRootIsAProxy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	const v4, v6 = "127.0.0.1", "::1"
	const user = 1000
	for _, tt := range []struct {
		name             string
		uid              int
		network, address string
		asked            string
		evidence         bool
	}{
		{"kube-proxy", 0, "tcp", "127.0.0.1:10249", v4, true},
		{"kube-proxy at all addresses, IPv4", 0, "tcp", ":10249", v4, true},
		{"kube-proxy at all addresses, IPv6", 0, "tcp", ":10249", v6, true},
		{"kube-proxy of IPv6", 0, "tcp", "[::1]:10249", v6, true},
		{"a user's", user, "tcp", "127.0.0.1:10249", v4, false},
		{"a user's of IPv6", user, "tcp", "[::1]:10249", v6, false},
		{"a user's at all addresses, IPv4", user, "tcp", ":10249", v4, false},
		{"a user's at all addresses, IPv6", user, "tcp", ":10249", v6, false},
		{"a user's at all addresses of IPv4", user, "tcp4", "0.0.0.0:10249", v4, false},
		{"a user's at all addresses of IPv6", user, "tcp6", "[::]:10249", v6, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			serveProxy(t, place.Enter(t, "node"), tt.uid, tt.network, tt.address)
			at := netip.AddrPortFrom(netip.MustParseAddr(tt.asked), proxyModePort)
			for _, e := range []endpoint{modeAt(at), healthAt(at)} {
				f := (&prober{sockets: sockets.Kernel{}}).probe(t.Context(), e, "me")
				if (f.evidence != "") != tt.evidence || f.silent != nil || (f.odd == "") != tt.evidence {
					t.Errorf("%s: %+v", e.url(), f)
				}
			}
		})
	}
}

// TestAHostPortIsNoProxy: a rule leads connections to a pod, where nothing listens
// and where root does.
func TestAHostPortIsNoProxy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	node := place.Enter(t, "node")
	pod := place.New(t, "pod")
	node.Wire(t, "pod0", pod)
	node.Run(t, "ip address add 192.0.2.1/24 dev pod0")
	pod.Run(t, "ip address add 192.0.2.2/24 dev eth0")
	serveProxy(t, pod, 0, "tcp", "192.0.2.2:10249")
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/all/route_localnet", []byte("1"), 0o644); err != nil { //nolint:gosec // it exists
		t.Fatal(err)
	}
	node.Run(t,
		"nft add table ip test",
		"nft add chain ip test output { type nat hook output priority -100; }",
		"nft add rule ip test output fib daddr type local tcp dport 10249 dnat to 192.0.2.2:10249",
		"nft add chain ip test postrouting { type nat hook postrouting priority 100; }",
		"nft add rule ip test postrouting oifname pod0 masquerade")
	e := modeAt(netip.MustParseAddrPort(ProxyModeAddress))
	p := &prober{sockets: sockets.Kernel{}}
	if a, err := e.ask(t.Context(), "me", agenttest.RootsSockets()); err != nil || a.evidence == "" {
		t.Fatalf("the pod does not answer: %+v, %v", a, err)
	}
	if f := p.probe(t.Context(), e, "me"); f.evidence != "" || f.silent != nil || f.odd != "" {
		t.Errorf("nothing listens: %+v", f)
	}
	serveProxy(t, node, 0, "tcp", ProxyModeAddress)
	if f := p.probe(t.Context(), e, "me"); f.evidence != "" || f.silent == nil || !strings.Contains(f.odd, "redirect connections") {
		t.Errorf("root listens: %+v", f)
	}
	node.Run(t, "nft delete table ip test")
	if f := p.probe(t.Context(), e, "me"); f.evidence == "" || f.silent != nil || f.odd != "" {
		t.Errorf("the rule is gone: %+v", f)
	}
}
