// Package health answers probes over HTTP: load balancers and monitors ask the
// proxy's ports, the kubelet asks the agent's own.
package health

import (
	"encoding/json"
	"net/http"
	"time"
)

// PendingLimit is how long a change may wait for the kernel before the proxy
// counts as unhealthy.
const PendingLimit = 60 * time.Second

// StuckLimit is how long the agent may be late or busy with one thing before
// the kubelet should restart it. Slow is not stuck.
const StuckLimit = 5 * time.Minute

// FamilyState is how far one IP family has come.
type FamilyState struct {
	// LastUpdated is when the kernel was last known to hold all of it.
	LastUpdated time.Time
	// OldestPending is when the oldest change came that the kernel does not
	// hold. Zero: none.
	OldestPending time.Time
}

// State is what the answers depend on.
type State struct {
	Now      time.Time
	Started  time.Time
	Families map[string]FamilyState
	// Eligible: load balancers may send new connections to the node.
	Eligible bool
	// Overdue is for how long the agent has been busy with one thing, or late.
	Overdue time.Duration
	// Settled: a first set has been applied, or it has been reported why not.
	Settled bool
}

// StateFunc returns the state at the moment.
type StateFunc func() State

// familyAnswer and answer are the bodies of /healthz and /livez of the proxy,
// in the form in which kube-proxy gives them.
type familyAnswer struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

type answer struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	Healthy      bool                    `json:"healthy"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Status       map[string]familyAnswer `json:"status"`
}

// ProxyHandler answers /healthz (may new connections be sent to this node?)
// and /livez (does the proxy keep up?) as kube-proxy does on its health port.
func ProxyHandler(state StateFunc) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		s := state()
		body := assess(s)
		body.NodeEligible = &s.Eligible
		write(w, body, body.Healthy && s.Eligible)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		body := assess(state())
		write(w, body, body.Healthy)
	})
	return mux
}

// assess says which families are healthy. A 200 answer's lastUpdated is now,
// that of a 503 answer the newest family's; write sees to the former.
func assess(s State) answer {
	out := answer{CurrentTime: s.Now, Healthy: true, LastUpdated: s.Started, Status: map[string]familyAnswer{}}
	for family, f := range s.Families {
		updated := f.LastUpdated
		if updated.IsZero() {
			updated = s.Started
		}
		healthy := f.OldestPending.IsZero() || s.Now.Sub(f.OldestPending) < PendingLimit
		out.Status[family] = familyAnswer{LastUpdated: updated, Healthy: healthy}
		out.Healthy = out.Healthy && healthy
		if updated.After(out.LastUpdated) {
			out.LastUpdated = updated
		}
	}
	return out
}

func write(w http.ResponseWriter, body answer, ok bool) {
	code := http.StatusServiceUnavailable
	if ok {
		code = http.StatusOK
		body.LastUpdated = body.CurrentTime
	}
	text, err := json.Marshal(body)
	if err != nil { // times outside the calendar; nothing else can fail
		http.Error(w, "encoding the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(text) // who asked has gone: nobody to tell
}

// MetricsHandler answers on the proxy's metrics port: the mode as kube-proxy
// names it, a constant health check, and the metrics.
func MetricsHandler(mode string, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/proxyMode", text(mode))
	mux.HandleFunc("/healthz", text("ok"))
	mux.Handle("/metrics", metrics)
	return mux
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write([]byte(s)) // who asked has gone: nobody to tell
	}
}

// KubeletHandler answers the kubelet's probes: /livez fails when the agent is
// stuck, /readyz until a first set is applied or it is reported why not.
func KubeletHandler(state StateFunc) http.Handler {
	mux := http.NewServeMux()
	probe := func(path, trouble string, ok func(State) bool) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if ok(state()) {
				text("ok")(w, nil)
				return
			}
			http.Error(w, trouble, http.StatusServiceUnavailable)
		})
	}
	probe("/livez", "the agent has not come to the changes that wait for it for 5 minutes", func(s State) bool { return s.Overdue < StuckLimit })
	probe("/readyz", "no complete set of rules has been applied yet; see the status of this node's NodeProxyRules", func(s State) bool { return s.Settled })
	return mux
}
