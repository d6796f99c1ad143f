package health

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var now = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

func get(t *testing.T, handler http.Handler, path string) (int, http.Header, map[string]any) {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
	var body map[string]any
	if recorder.Header().Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(recorder.Body.Bytes(), &body); err != nil {
			t.Fatalf("body %q: %v", recorder.Body, err)
		}
	}
	return recorder.Code, recorder.Header(), body
}

func TestProxyHealth(t *testing.T) {
	pending := func(age time.Duration) map[string]FamilyState {
		return map[string]FamilyState{
			"IPv4": {LastUpdated: now.Add(-time.Hour), OldestPending: now.Add(-age)},
			"IPv6": {LastUpdated: now.Add(-time.Minute)},
		}
	}
	tests := []struct {
		name            string
		state           State
		healthz, livez  int
		wantLastUpdated string
	}{
		{"started, nothing queued", State{Eligible: true, Families: map[string]FamilyState{"IPv4": {}}}, 200, 200, "2026-11-20T08:00:00Z"},
		{"own object never seen", State{Families: map[string]FamilyState{"IPv4": {}}}, 503, 200, "2026-11-20T06:00:00Z"},
		{"synced long ago", State{Eligible: true, Families: map[string]FamilyState{"IPv4": {LastUpdated: now.Add(-time.Hour)}}}, 200, 200, "2026-11-20T08:00:00Z"},
		{"a change just below the limit", State{Eligible: true, Families: pending(pendingLimit - 1)}, 200, 200, "2026-11-20T08:00:00Z"},
		{"one family late", State{Eligible: true, Families: pending(pendingLimit)}, 503, 503, "2026-11-20T07:59:00Z"},
		{"draining", State{Families: map[string]FamilyState{"IPv4": {LastUpdated: now.Add(-time.Minute)}}}, 503, 200, "2026-11-20T07:59:00Z"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.state.Now, tt.state.Started = now, now.Add(-2*time.Hour)
			handler := ProxyHandler(func() State { return tt.state }, func(string, int) {})
			code, header, body := get(t, handler, "/healthz")
			if code != tt.healthz {
				t.Errorf("healthz %d, want %d", code, tt.healthz)
			}
			if header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Content-Type") != "application/json" {
				t.Errorf("headers %v", header)
			}
			if body["nodeEligible"] != tt.state.Eligible || body["lastUpdated"] != tt.wantLastUpdated || body["currentTime"] != "2026-11-20T08:00:00Z" {
				t.Errorf("body %v, want lastUpdated %s", body, tt.wantLastUpdated)
			}
			code, _, body = get(t, handler, "/livez")
			if code != tt.livez {
				t.Errorf("livez %d, want %d", code, tt.livez)
			}
			if _, found := body["nodeEligible"]; found {
				t.Errorf("livez reports eligibility: %v", body)
			}
		})
	}
}

func TestProxyHealthBody(t *testing.T) {
	state := State{Now: now, Eligible: true, Families: map[string]FamilyState{
		"IPv4": {LastUpdated: now.Add(-time.Hour), OldestPending: now.Add(-2 * time.Minute)},
		"IPv6": {LastUpdated: now.Add(-time.Minute)},
	}}
	_, _, body := get(t, ProxyHandler(func() State { return state }, func(string, int) {}), "/healthz")
	want := map[string]any{
		"lastUpdated": "2026-11-20T07:59:00Z", "currentTime": "2026-11-20T08:00:00Z", "healthy": false, "nodeEligible": true,
		"status": map[string]any{
			"IPv4": map[string]any{"lastUpdated": "2026-11-20T07:00:00Z", "healthy": false},
			"IPv6": map[string]any{"lastUpdated": "2026-11-20T07:59:00Z", "healthy": true},
		},
	}
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
}

func TestKubeletProbes(t *testing.T) {
	tests := []struct {
		name          string
		overdue       time.Duration
		unready       string
		livez, readyz int
	}{
		{"starting", 0, "no answer of the API", 200, 503},
		{"ready", 0, "", 200, 200},
		{"slow", stuckLimit - 1, "", 200, 200},
		{"stuck", stuckLimit, "", 503, 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			handler := KubeletHandler(func() time.Duration { return tt.overdue }, func() string { return tt.unready }, http.NotFoundHandler())
			if code, _, _ := get(t, handler, "/livez"); code != tt.livez {
				t.Errorf("livez %d, want %d", code, tt.livez)
			}
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			if recorder.Code != tt.readyz || !strings.Contains(recorder.Body.String(), tt.unready) {
				t.Errorf("readyz %d %q, want %d and %q", recorder.Code, recorder.Body, tt.readyz, tt.unready)
			}
		})
	}
}

func TestMetricsPort(t *testing.T) {
	handler := MetricsHandler(func() string { return "ipvs" }, http.NotFoundHandler())
	for path, want := range map[string]string{"/proxyMode": "ipvs", "/healthz": "ok"} {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
		if recorder.Code != http.StatusOK || recorder.Body.String() != want {
			t.Errorf("%s: %d %q, want %q", path, recorder.Code, recorder.Body, want)
		}
	}
}

// freePort reserves a loopback port.
func freePort(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // closed by some tests already
	return l
}
