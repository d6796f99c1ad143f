package agent

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestFailover(t *testing.T) {
	var answered [2]atomic.Int32
	server := func(i int) *httptest.Server {
		return httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			answered[i].Add(1)
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"apiVersion":"nodeproxy.io/v1alpha1","kind":"NodeProxy","metadata":{"name":"cluster"}}`))
		}))
	}
	first, second := server(0), server(1)
	defer second.Close()
	client, err := NewClient(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, []string{first.URL, second.URL})
	if err != nil {
		t.Fatal(err)
	}
	get := func() error {
		return client.rest.Get().Resource("nodeproxies").Name("cluster").Do(context.Background()).Into(&v1alpha1.NodeProxy{})
	}
	if err := get(); err != nil || answered[0].Load() != 1 {
		t.Fatalf("the first server is not asked first: %v", err)
	}
	first.Close()
	for range 3 { // the request that meets the dead server may fail
		_ = get()
	}
	if err := get(); err != nil || answered[1].Load() < 2 {
		t.Errorf("the second server is not asked: %v, %d answers", err, answered[1].Load())
	}
}

func TestServersAreCheckedForTheNameInTheConfig(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"nodeproxy.io/v1alpha1","kind":"NodeProxy","metadata":{"name":"cluster"}}`))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are to fail
	defer server.Close()
	// It is a certificate for example.com and 127.0.0.1.
	trusted := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for _, tt := range []struct {
		host, serverName string
		trusted          bool
	}{
		{"https://example.com:6443", "", true},
		{"example.com:6443", "", true}, // a kubeconfig may leave the scheme out
		{"https://127.0.0.1:6443", "", true},
		{"https://other.example.org:6443", "", false}, // though the address alone would do
		{"https://other.example.org:6443", "example.com", true},
		{"https://example.com:6443", "other.example.org", false},
	} {
		config := &rest.Config{Host: tt.host, TLSClientConfig: rest.TLSClientConfig{CAData: trusted, ServerName: tt.serverName}}
		client, err := NewClient(config, []string{server.URL})
		if err != nil {
			t.Fatal(err)
		}
		err = client.rest.Get().Resource("nodeproxies").Name("cluster").Do(t.Context()).Into(&v1alpha1.NodeProxy{})
		if (err == nil) != tt.trusted {
			t.Errorf("%s, tls-server-name %q: %v, want trusted %v", tt.host, tt.serverName, err, tt.trusted)
		}
	}
}

func TestServerURLs(t *testing.T) {
	for _, bad := range []string{"192.0.2.10:6443", "http://192.0.2.10:6443", "https://", "https://192.0.2.10:6443/path", "https://[::1"} {
		if _, err := NewClient(&rest.Config{}, []string{bad}); err == nil || !strings.Contains(err.Error(), "https://192.0.2.10:6443") {
			t.Errorf("%s: got %v, want an error with an example", bad, err)
		}
	}
	hosts, err := parseServers([]string{"https://192.0.2.10:6443", "https://[2001:db8::1]", "https://api.example/"})
	if err != nil || strings.Join(hosts, " ") != "192.0.2.10:6443 [2001:db8::1]:443 api.example:443" {
		t.Errorf("hosts %v, %v", hosts, err)
	}
}

func TestAPITroubleIsSaidOnceWithAdvice(t *testing.T) {
	resource := schema.GroupResource{Group: "nodeproxy.io", Resource: "serviceproxyrules"}
	for _, tt := range []struct {
		err    error
		advice string
	}{
		{apierrors.NewNotFound(resource, ""), "kubectl apply -f config/crd/bases"},
		{apierrors.NewUnauthorized("no"), "--kubeconfig"},
		{apierrors.NewForbidden(resource, "", errors.New("no")), "ClusterRole"},
		{errors.New("connection refused"), "--api-server"},
	} {
		var log []string
		failing := map[string]bool{}
		clk := clocktesting.NewFakePassiveClock(epoch)
		trouble := newAPITrouble(clk, funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{}), "https://192.0.2.10:6443",
			func(resource string, on bool) { failing[resource] = on })
		const r = "serviceproxyrules"
		trouble.watching(r)
		for range 5 {
			trouble.failed(context.Background(), r, tt.err)
		}
		if len(log) != 1 || !strings.Contains(log[0], tt.advice) || !strings.Contains(log[0], "rules in the kernel stay") || !failing[r] {
			t.Errorf("%v: log %q lacks %q, or is not one line; failing %v", tt.err, log, tt.advice, failing)
		}
		clk.SetTime(epoch.Add(time.Minute))
		trouble.failed(context.Background(), r, tt.err)
		trouble.watching(r)
		trouble.watching(r)
		if len(log) != 3 || failing[r] {
			t.Errorf("log %q, failing %v", log, failing)
		}
		stopped, cancel := context.WithCancel(context.Background())
		cancel()
		trouble.failed(stopped, r, tt.err)
		if len(log) != 3 {
			t.Errorf("it complains while stopping: %q", log[3:])
		}
	}
}

func TestProbeProxyMode(t *testing.T) {
	status, body := http.StatusOK, "iptables\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/proxyMode" {
			status = http.StatusTeapot
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	probe := ProbeProxyMode(strings.TrimPrefix(server.URL, "http://"))
	expect := func(wantMode string, wantActive bool) {
		t.Helper()
		if mode, active, err := probe(context.Background()); mode != wantMode || active != wantActive || err != nil {
			t.Errorf("got %q, %v, %v, want %q, %v", mode, active, err, wantMode, wantActive)
		}
	}
	expect("iptables", true)
	body = ""
	expect("", true)
	status = http.StatusNotFound
	expect("", false)
	server.Close()
	expect("", false)
}

func TestProbeWithoutAnswerTellsNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts for it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }() // nothing was written
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if mode, active, err := ProbeProxyMode(listener.Addr().String())(ctx); err == nil || active {
		t.Errorf("got %q, %v, %v, want an error", mode, active, err)
	}
}
