package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestEtcdCreatesServices(t *testing.T) {
	written, status := map[string][]byte{}, http.StatusOK
	e := &etcd{&http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		var put struct{ Key, Value []byte }
		if err := json.NewDecoder(r.Body).Decode(&put); err != nil {
			return nil, err
		}
		written[string(put.Key)] = put.Value
		return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("{}"))}, nil
	})}}
	seen := map[string]bool{}
	for _, i := range []int{0, 255, 256, maxServices - 1} {
		ip, err := e.createService(t.Context(), i)
		if err != nil || seen[ip] || !netip.MustParsePrefix("10.96.0.0/16").Contains(netip.MustParseAddr(ip)) {
			t.Fatalf("%s, %v", ip, err)
		}
		seen[ip] = true
		var service corev1.Service
		if err := json.Unmarshal(written["/registry/services/specs/default/"+serviceName(i)], &service); err != nil || service.Spec.ClusterIP != ip || service.Kind != "Service" {
			t.Errorf("%v: %+v", err, service)
		}
		if written["/registry/ipaddresses/"+ip] == nil {
			t.Errorf("%s is not allocated", ip)
		}
	}
	status = http.StatusInternalServerError
	if _, err := e.createService(t.Context(), 1); err == nil {
		t.Error("no error if etcd has one")
	}
}
