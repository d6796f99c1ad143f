package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// ProxyModeAddress is where kube-proxy and we say which mode runs.
	ProxyModeAddress = "127.0.0.1:10249"
	// proxyHealthPort is where kube-proxy, we and some other proxies tell load
	// balancers that the node is well.
	proxyHealthPort = "10256"
	// probeTimeout is how long another proxy may take to answer.
	probeTimeout = 2 * time.Second
	// probeLimit is how many looks in a row may go unanswered until what listens
	// there is taken for something else than a proxy.
	probeLimit = 5
	// maxAnswer bounds what is read of an answer, in bytes.
	maxAnswer = 64 << 10
	// instanceHeader tells the ports of this agent from those of another one.
	instanceHeader = "Nodeproxy-Agent"
)

// ProbeFunc asks the ports of proxies on this node whether one answers. It
// returns what tells of it, for people, and an empty string where none does. An
// answer of the agent whose instance is given does not count. An error means
// that something accepts connections there and has not answered in time.
type ProbeFunc func(ctx context.Context, instance string) (sign string, err error)

// endpoint is a port where a proxy answers.
type endpoint struct {
	url string
	// read says what an answer tells; empty: it is no proxy's.
	read func(code int, body []byte) string
}

// NewProbe returns a ProbeFunc that asks the ports of kube-proxy on the node's
// loopback addresses: /proxyMode at 10249, and /healthz at 10256, where some
// other proxies answer too.
func NewProbe() ProbeFunc {
	const v6 = "[::1]" // of a cluster of IPv6
	return probe(
		modeAt(ProxyModeAddress), modeAt(v6+":10249"),
		healthAt("127.0.0.1:"+proxyHealthPort), healthAt(v6+":"+proxyHealthPort))
}

// ProbeProxyMode returns a ProbeFunc that asks for the mode at address only.
func ProbeProxyMode(address string) ProbeFunc { return probe(modeAt(address)) }

// modeAt is a port where kube-proxy says its mode. What answers 200 is a proxy.
func modeAt(address string) endpoint {
	e := endpoint{url: "http://" + address + "/proxyMode"}
	e.read = func(code int, body []byte) string {
		if code != http.StatusOK {
			return ""
		}
		mode := strings.TrimSpace(string(body))
		if mode == "" {
			mode = "unknown"
		}
		return fmt.Sprintf("%s answers %q", e.url, clip(mode, 64))
	}
	return e
}

// healthAt is a port where a proxy says whether it keeps up, well or not.
func healthAt(address string) endpoint {
	e := endpoint{url: "http://" + address + "/healthz"}
	e.read = func(_ int, body []byte) string {
		var answer struct {
			LastUpdated, CurrentTime string
		}
		if json.Unmarshal(bytes.TrimSpace(body), &answer) != nil || answer.LastUpdated == "" || answer.CurrentTime == "" {
			return ""
		}
		return e.url + " answers as a proxy does"
	}
	return e
}

func probe(endpoints ...endpoint) ProbeFunc {
	client := &http.Client{
		Timeout:   probeTimeout,
		Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true},
		// Whoever sends us elsewhere is no proxy.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context, instance string) (string, error) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		// All at the same time: a repair waits for this, and several ports may be
		// silent. The first in order tells, so that the
		// sign does not alternate.
		answers := make([]chan answer, len(endpoints))
		for i, e := range endpoints {
			answers[i] = make(chan answer, 1)
			wg.Go(func() {
				sign, err := e.ask(ctx, client, instance)
				answers[i] <- answer{sign, err}
			})
		}
		var silent error
		for _, ask := range answers {
			a := <-ask
			if a.sign != "" {
				return a.sign, nil
			}
			silent = errors.Join(silent, a.err)
		}
		return "", silent
	}
}

// answer is what a port tells; see ProbeFunc.
type answer struct {
	sign string
	err  error
}

func (e endpoint) ask(ctx context.Context, client *http.Client, instance string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url, http.NoBody)
	if err != nil {
		return "", fmt.Errorf("asking for another proxy: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return "", fmt.Errorf("asking for another proxy: %w", err)
		}
		return "", nil // nobody there, or nobody that speaks HTTP
	}
	defer func() { _ = response.Body.Close() }() // only read from
	other := response.Header.Get(instanceHeader)
	if other != "" && other == instance {
		return "", nil
	}
	// What cannot be read to its end has answered all the same.
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	sign := e.read(response.StatusCode, body)
	if sign != "" && other != "" {
		sign += ", by another nodeproxy-agent"
	}
	return sign, nil
}

// answering lets whoever asks our ports know which agent answers.
func (a *Agent) answering(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(instanceHeader, a.instance)
		handler.ServeHTTP(w, r)
	})
}

// formerConflict reports whether the stored status, as this agent first saw it,
// says that another proxy was active.
func formerConflict(object *v1alpha1.NodeProxyRules) bool {
	return meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionConflictingProxy)
}

// conflictCondition is the condition ConflictingProxy, if the node has it: one
// that never had a conflict does not.
func conflictCondition(f facts, former []metav1.Condition) *metav1.Condition {
	c := &metav1.Condition{Type: v1alpha1.ConditionConflictingProxy, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoConflict}
	switch {
	case f.conflict() != "":
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonConflictingProxy, conflictMessage(f)
	case meta.FindStatusCondition(former, c.Type) == nil:
		return nil
	case f.removing:
		c.Message = "the NodeProxy was deleted with removalPolicy Cleanup: this agent writes nothing, whoever else does"
	case f.audit:
		c.Message = "enforcement is Audit: this agent writes nothing, whoever else does"
	default:
		c.Message = "no other proxy is active on this node"
	}
	return c
}

// conflict is what tells of another proxy that keeps us from writing; empty:
// nothing.
func (f facts) conflict() string {
	if f.audit || f.removing {
		return ""
	}
	return f.otherProxy
}

func conflictMessage(f facts) string {
	const meanwhile = "nothing is written and none of its ports is opened"
	if !f.otherGone.IsZero() {
		return fmt.Sprintf("another proxy was active on this node (%s) and has shown no sign since %s: %s until %s have gone by without any; then the agent takes over",
			f.otherProxy, f.otherGone.UTC().Format(time.RFC3339), meanwhile, f.otherWait)
	}
	return fmt.Sprintf("another proxy is active on this node (%s): %s; stop it on this node (kube-proxy: delete its DaemonSet, or keep its pods off this node) and the agent takes over",
		f.otherProxy, meanwhile)
}
