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

// StuckLimit is how long the agent may be late for what waits for it, or without
// progress in what it does, before the kubelet should restart it. Neither slow nor
// failing is stuck.
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
	// Withheld: rules are programmed, but nobody has confirmed yet that they are
	// those of today. Load balancers are kept away meanwhile.
	Withheld bool
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
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyAnswer `json:"status,omitempty"`
}

// ProxyHandler answers /healthz (may new connections be sent to this node?)
// and /livez (does the proxy keep up?) as kube-proxy does on its health port, and
// tells answered of each answer.
func ProxyHandler(state StateFunc, answered func(path string, code int)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		s := state()
		body := assess(s)
		eligible := s.Eligible && !s.Withheld
		body.NodeEligible = &eligible
		answered("/healthz", write(w, body, body.Healthy && eligible))
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		body := assess(state())
		answered("/livez", write(w, body, body.Healthy))
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

// ServesTraffic reports whether load balancers can rely on what the node does
// with connections: the proxy keeps up, and its rules are those of today.
func ServesTraffic(s State) bool { return assess(s).Healthy && !s.Withheld }

// write answers and returns the status.
func write(w http.ResponseWriter, body answer, ok bool) int {
	code := http.StatusServiceUnavailable
	if ok {
		code = http.StatusOK
		body.LastUpdated = body.CurrentTime
	}
	text, err := json.Marshal(body)
	if err != nil { // times outside the calendar; nothing else can fail
		http.Error(w, "encoding the answer: "+err.Error(), http.StatusInternalServerError)
		return http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(text) // who asked has gone: nobody to tell
	return code
}

// MetricsHandler answers on the proxy's metrics port: the mode as kube-proxy
// names it, a constant health check, and the metrics.
func MetricsHandler(mode func() string, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, r *http.Request) { text(mode())(w, r) })
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

// KubeletHandler answers the kubelet's probes. /livez fails when the agent is stuck: overdue
// is for how long it has been late, or without progress. /readyz fails until the agent has
// first done its work or reported why not: unready says what is missing, empty if nothing is.
// The metrics are there too, because the port is open from the start: also beside another
// proxy, which has the metrics port then.
func KubeletHandler(overdue func() time.Duration, unready func() string, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics)
	// probe answers what is wrong, or ok.
	probe := func(path string, trouble func() string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			if wrong := trouble(); wrong != "" {
				http.Error(w, wrong, http.StatusServiceUnavailable)
				return
			}
			text("ok")(w, r)
		})
	}
	probe("/livez", func() string {
		if overdue() < StuckLimit {
			return ""
		}
		return "the agent has not even tried to write what waits for it, or a program that it runs (such as iptables-restore) hangs, for 5 minutes; see its log"
	})
	probe("/readyz", unready)
	return mux
}
