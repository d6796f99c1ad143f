package cluster

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

// served is a reader of a state with a number of ServiceProxyRules.
func served(t *testing.T, services int, forbidden string) *Reader {
	t.Helper()
	var list strings.Builder
	list.WriteString("metadata: {resourceVersion: \"7\"}\nitems:\n")
	for i := range services {
		fmt.Fprintf(&list, "- {metadata: {name: shop.service-%04d}, spec: {formatVersion: 1, clusterIPs: [10.96.%d.%d]}}\n", services-i, i/250, 1+i%250)
	}
	return readerOf(t, map[string]string{"forbidden": forbidden, "serviceproxyrules.yaml": list.String(), "nodeproxies.yaml": "items: []"})
}

// readerOf is a reader of a state in these files.
func readerOf(t *testing.T, files map[string]string) *Reader {
	t.Helper()
	directory := t.TempDir()
	files["now"] = "2026-11-22T12:00:00Z"
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	state, err := recorded.Load(directory)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(&rest.Config{Host: state.Serve(t)}, "v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestPages: pages are complete, in order and sorted.
func TestPages(t *testing.T) {
	t.Parallel()
	const services = 2*pageSize + 1
	r := served(t, services, "")
	objects := &Objects{}
	if err := r.Read(t.Context(), objects, []Kind{ServiceProxyRules, NodeProxies}, nil); err != nil {
		t.Fatal(err)
	}
	names, err := r.Names(t.Context(), ServiceProxyRules)
	if err != nil {
		t.Fatal(err)
	}
	if len(objects.ServiceRules) != services || len(names) != services || objects.NodeProxy != nil {
		t.Fatalf("%d objects, %d names, NodeProxy %v", len(objects.ServiceRules), len(names), objects.NodeProxy)
	}
	for i := range objects.ServiceRules {
		want := fmt.Sprintf("shop.service-%04d", i+1)
		o := &objects.ServiceRules[i]
		address := fmt.Sprintf("10.96.%d.%d", (services-i-1)/250, 1+(services-i-1)%250)
		if o.Name != want || names[i] != want || o.Spec.ClusterIPs[0] != address {
			t.Fatalf("%d: %s %v, %s", i, o.Name, o.Spec.ClusterIPs, names[i])
		}
	}
}

// TestTime: the time is that of the API server, if known.
func TestTime(t *testing.T) {
	t.Parallel()
	r := served(t, 1, "")
	if err := r.Read(t.Context(), &Objects{}, []Kind{ServiceProxyRules}, nil); err != nil {
		t.Fatal(err)
	}
	if got, want := r.Time(), time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("the API server's clock is %s, want %s", got, want)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Date"] = nil
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	silent, err := NewReader(&rest.Config{Host: server.URL}, "v0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	if err := silent.Read(t.Context(), &Objects{}, []Kind{ServiceProxyRules}, nil); err == nil || !silent.Time().IsZero() {
		t.Errorf("error %v, and the time is %s without a server's", err, silent.Time())
	}
}

// TestOptional: unreadable optional kinds are listed, required ones are an error.
func TestOptional(t *testing.T) {
	t.Parallel()
	r := served(t, 1, "pods")
	objects := &Objects{}
	if err := r.Read(t.Context(), objects, []Kind{ServiceProxyRules}, []Kind{Pods}); err != nil {
		t.Fatal(err)
	}
	if len(objects.Unread) != 1 || objects.Unread[0].Kind != Pods || !strings.Contains(objects.Unread[0].Why, "ClusterRole view to you") {
		t.Errorf("unread: %+v", objects.Unread)
	}
	if err := r.Read(t.Context(), &Objects{}, []Kind{ServiceProxyRules, Pods}, nil); err == nil {
		t.Error("required pods are unreadable without an error")
	}
}

// TestUndecodable: an object that cannot be decoded is named.
func TestUndecodable(t *testing.T) {
	t.Parallel()
	r := readerOf(t, map[string]string{
		"serviceproxyrules.yaml": "items: [{metadata: {name: shop.a}, spec: {formatVersion: 1}}, {metadata: {name: shop.b}, spec: {formatVersion: 1, ports: many}}]",
	})
	err := r.Read(t.Context(), &Objects{}, []Kind{ServiceProxyRules}, nil)
	if err == nil || !strings.HasPrefix(err.Error(), "the ServiceProxyRules shop.b cannot be decoded: ") || !strings.Contains(err.Error(), "spec.ports") {
		t.Errorf("error %v", err)
	}
}

// TestNoNode: invalid names are not requested.
func TestNoNode(t *testing.T) {
	t.Parallel()
	r := served(t, 1, "")
	for _, name := range []string{"", ".", "a/b", "../x", "Node-1", "a b"} {
		if _, err := r.Node(t.Context(), name); err == nil || !strings.Contains(err.Error(), "is not a valid name of a node") {
			t.Errorf("%q: error %v", name, err)
		}
	}
}

// TestSuggest: similar names, and no others.
func TestSuggest(t *testing.T) {
	t.Parallel()
	known := []string{"node-1", "node-2", "gateway", "edge-pool-7"}
	for name, want := range map[string]string{
		"nod-1":   ": did you mean node-1 or node-2?",
		"edge":    ": did you mean edge-pool-7?",
		"gatway":  ": did you mean gateway?",
		"control": "",
	} {
		if got := Suggest(name, known); got != want {
			t.Errorf("%s: %q, not %q", name, got, want)
		}
	}
}
