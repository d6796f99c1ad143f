package fulltable

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"

	jsonpatch "github.com/evanphx/json-patch/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// api serves as much of an API server as an agent needs: lists, watches and the
// status of its own object. It speaks HTTP/2, so an agent has one connection.
type api struct {
	server *httptest.Server

	mu      sync.Mutex // guards everything below
	version int
	// objects by resource and name.
	objects map[string]map[string]metav1.Object
	// changed is closed and replaced with every change.
	changed chan struct{}
	events  []event
}

// listKinds are the kinds of lists by resource.
var listKinds = map[string]string{
	"nodeproxies": "NodeProxyList", "nodeproxyrules": "NodeProxyRulesList", "serviceproxyrules": "ServiceProxyRulesList",
}

// event is what a watch reports.
type event struct {
	resource string
	version  int
	body     []byte
}

func newAPI() *api {
	a := &api{version: 1, objects: map[string]map[string]metav1.Object{}, changed: make(chan struct{})}
	a.server = httptest.NewUnstartedServer(http.HandlerFunc(a.serve))
	a.server.EnableHTTP2 = true
	a.server.StartTLS()
	return a
}

func (a *api) config() *rest.Config {
	return &rest.Config{Host: a.server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

// put stores an object and notifies the watches.
func (a *api) put(resource string, object metav1.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(resource, object)
}

// store is put for a caller that holds mu.
func (a *api) store(resource string, object metav1.Object) {
	a.version++
	kind := "ADDED"
	if a.objects[resource] == nil {
		a.objects[resource] = map[string]metav1.Object{}
	}
	if a.objects[resource][object.GetName()] != nil {
		kind = "MODIFIED"
	}
	object.SetResourceVersion(strconv.Itoa(a.version))
	a.objects[resource][object.GetName()] = object
	a.events = append(a.events, event{resource, a.version, encode(map[string]any{"type": kind, "object": object})})
	close(a.changed)
	a.changed = make(chan struct{})
}

// own returns the NodeProxyRules of the node.
func (a *api) own() *v1alpha1.NodeProxyRules {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.objects["nodeproxyrules"][nodeName].(*v1alpha1.NodeProxyRules).DeepCopy()
}

func encode(value any) []byte {
	body, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("encoding %T: %v", value, err)) // of our own making
	}
	return body
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	resource, found := strings.CutPrefix(r.URL.Path, "/apis/nodeproxy.io/v1alpha1/")
	w.Header().Set("Content-Type", "application/json")
	switch {
	case found && r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		a.watch(w, r, resource)
	case found && r.Method == http.MethodGet:
		a.mu.Lock()
		defer a.mu.Unlock()
		_, _ = w.Write(encode(map[string]any{ // to a client that may be gone
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": listKinds[resource],
			"metadata": map[string]string{"resourceVersion": strconv.Itoa(a.version)},
			"items":    slices.Collect(maps.Values(a.objects[resource])),
		}))
	case found && r.Method == http.MethodPatch && resource == "nodeproxyrules/"+nodeName+"/status":
		patch, err := io.ReadAll(r.Body)
		a.mu.Lock()
		defer a.mu.Unlock()
		var patched []byte
		if err == nil {
			patched, err = jsonpatch.MergePatch(encode(a.objects["nodeproxyrules"][nodeName]), patch)
		}
		object := &v1alpha1.NodeProxyRules{}
		if err == nil {
			err = json.Unmarshal(patched, object)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		object.ManagedFields = nil
		a.store("nodeproxyrules", object)
		_, _ = w.Write(encode(object)) // to a client that may be gone
	default: // leases
		http.Error(w, "not served", http.StatusNotImplemented)
	}
}

// watch reports what has changed since a version.
func (a *api) watch(w http.ResponseWriter, r *http.Request, resource string) {
	since, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion")) // 0: everything
	w.WriteHeader(http.StatusOK)
	for {
		a.mu.Lock()
		events, changed := a.events, a.changed
		a.mu.Unlock()
		for _, e := range events {
			if e.resource != resource || e.version <= since {
				continue
			}
			since = e.version
			_, _ = w.Write(append(e.body, '\n')) // the context ends when it is gone
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}
