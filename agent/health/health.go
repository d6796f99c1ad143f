package health

import (
	"encoding/json"
	"net/http"
	"time"
)

// pendingLimit is how long a change may be pending before the proxy counts as unhealthy.
const pendingLimit = 60 * time.Second

// stuckLimit is for how long the agent may be late, or without progress, before the kubelet
// should restart it. An agent that is slow or fails is not stuck.
const stuckLimit = 5 * time.Minute

// FamilyState is the progress of one IP family.
type FamilyState struct {
	// LastUpdated is when the kernel was last known to be up to date.
	LastUpdated time.Time
	// OldestPending is when the oldest pending change arrived. Zero: there is none.
	OldestPending time.Time
}

// State determines the answers.
type State struct {
	Now      time.Time
	Started  time.Time
	Families map[string]FamilyState
	// Eligible: load balancers may send new connections to the node.
	Eligible bool
	// Withheld: rules are programmed, but not confirmed to be current. Load balancers must use
	// other nodes.
	Withheld bool
}

// familyAnswer and answer are the bodies of /healthz and /livez of the proxy, in kube-proxy's
// format.
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

// ProxyHandler answers /healthz (may this node get new connections?) and /livez (does the proxy
// keep up?) like kube-proxy on its health port, and calls answered for each answer.
func ProxyHandler(state func() State, answered func(path string, code int)) http.Handler {
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

// assess determines which families are healthy. LastUpdated is that of a 503 answer: the newest
// family's.
func assess(s State) answer {
	out := answer{CurrentTime: s.Now, Healthy: true, LastUpdated: s.Started, Status: map[string]familyAnswer{}}
	for family, f := range s.Families {
		updated := f.LastUpdated
		if updated.IsZero() {
			updated = s.Started
		}
		healthy := f.OldestPending.IsZero() || s.Now.Sub(f.OldestPending) < pendingLimit
		out.Status[family] = familyAnswer{LastUpdated: updated, Healthy: healthy}
		out.Healthy = out.Healthy && healthy
		if updated.After(out.LastUpdated) {
			out.LastUpdated = updated
		}
	}
	return out
}

// ServesTraffic reports whether load balancers can rely on the node: the proxy keeps up, and its
// rules are confirmed to be current.
func ServesTraffic(s State) bool { return assess(s).Healthy && !s.Withheld }

// write answers and returns the status.
func write(w http.ResponseWriter, body answer, ok bool) int {
	code := http.StatusServiceUnavailable
	if ok {
		code = http.StatusOK
		body.LastUpdated = body.CurrentTime
	}
	text, err := json.Marshal(body)
	if err != nil { // only for times outside the calendar
		http.Error(w, "encoding the answer: "+err.Error(), http.StatusInternalServerError)
		return http.StatusInternalServerError
	}
	respond(w, code, "application/json", text)
	return code
}

func respond(w http.ResponseWriter, code int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client has gone
}

// MetricsHandler answers on the proxy's metrics port: the mode as kube-proxy names it, a constant
// health check, and the metrics.
func MetricsHandler(mode func() string, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { writeText(w, mode()) })
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok") })
	mux.Handle("/metrics", metrics)
	return mux
}

func writeText(w http.ResponseWriter, text string) {
	respond(w, http.StatusOK, "text/plain; charset=utf-8", []byte(text))
}

// KubeletHandler answers the kubelet's probes. /livez fails when the agent is stuck: overdue is for
// how long it has been late, or without progress. /readyz fails until the agent has done its work
// once or reported why not: unready returns what is missing, or nothing. The metrics are there
// too, because this port is always open, even while another proxy has the metrics port.
func KubeletHandler(overdue func() time.Duration, unready func() string, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics)
	probe := func(path string, problem func() string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			if text := problem(); text != "" {
				http.Error(w, text, http.StatusServiceUnavailable)
				return
			}
			writeText(w, "ok")
		})
	}
	probe("/livez", func() string {
		if overdue() < stuckLimit {
			return ""
		}
		return "the agent has not even tried to write pending changes, or a program that it runs (such as iptables-restore) hangs, for 5 minutes; see its log"
	})
	probe("/readyz", unready)
	return mux
}
