package cluster

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestSilentTLS: a server that accepts connections but never speaks TLS, which
// --request-timeout does not affect.
func TestSilentTLS(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // whose backlog takes connections
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	server := "https://" + silent.Addr().String()
	client := &http.Client{Transport: &http.Transport{TLSHandshakeTimeout: time.Millisecond}}
	answer, err := client.Get(server)
	if err == nil {
		_ = answer.Body.Close()
		t.Fatal("it answers")
	}
	r := &Reader{server: server, timeout: patience}
	got := r.explain(NodeProxies, err).Error()
	if !strings.HasPrefix(got, "the API server "+server+" accepts connections but does not complete the TLS handshake: ") {
		t.Errorf("%v is explained as %q", err, got)
	}
}

// TestPlainHTTP: an HTTPS server that gets plain HTTP.
func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	address := strings.Replace(server.URL, "https://", "http://", 1)
	r, err := NewReader(&rest.Config{Host: address}, "v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	err = r.Read(t.Context(), &Objects{}, []Kind{NodeProxies}, nil)
	if want := "the API server " + address + " requires HTTPS: use an address with https:// "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

// TestNoAddress: invalid addresses of API servers.
func TestNoAddress(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"foo bar", "https://foo bar", "a/b"} {
		_, err := NewReader(&rest.Config{Host: host}, "v0.1.0")
		if err == nil || !strings.Contains(err.Error(), "is not the address of an API server: use https://HOST:PORT") {
			t.Errorf("%q: error %v", host, err)
		}
	}
}
