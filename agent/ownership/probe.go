package ownership

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/nodeproxy-io/nodeproxy/agent/sockets"
	"github.com/nodeproxy-io/nodeproxy/api/text"
)

const (
	// ProxyModeAddress is where kube-proxy and we report the mode.
	ProxyModeAddress = "127.0.0.1:10249"
	proxyModePort    = 10249
	// proxyHealthPort is where kube-proxy, we and some other proxies report health to load
	// balancers.
	proxyHealthPort = 10256
	// probeTimeout is how long another proxy may take to answer.
	probeTimeout = 2 * time.Second
	// ProbeLimit is how many consecutive probes may go unanswered until the listener is
	// assumed to be no proxy.
	ProbeLimit = 5
	// maxAnswer limits what is read of most answers, in bytes.
	maxAnswer = 64 << 10
	// InstanceHeader distinguishes the ports of this agent from those of another one.
	InstanceHeader = "Nodeproxy-Agent"
)

// ProbeFunc probes the ports of proxies on this node. It returns human-readable evidence of one
// that answers; empty: none does. Answers of the agent with the given instance do not count,
// nor do those of processes that are not root's. An error means that a process of root accepts
// connections and has not answered in time.
type ProbeFunc func(ctx context.Context, instance string) (evidence string, err error)

// Sockets names the processes that have the node's TCP ports: see sockets.Kernel.
type Sockets interface {
	Listening(netip.AddrPort) (*sockets.Listener, error)
	Here(server, client netip.AddrPort) (bool, error)
	Holder(netip.AddrPort) (*sockets.Listener, error)
}

// endpoint is a port where a proxy answers.
type endpoint struct {
	address netip.AddrPort
	path    string
	// read returns the evidence of an answer; empty: it is no proxy's.
	read func(code int, body []byte) string
	// limit bounds what is read of an answer, in bytes.
	limit int64
	// notOurs: answers of any nodeproxy-agent do not count.
	notOurs bool
}

func (e endpoint) url() string { return "http://" + e.address.String() + e.path }

// NewProbe returns a ProbeFunc for the ports of kube-proxy on the node's loopback addresses:
// /proxyMode at 10249, and /healthz at 10256, where some other proxies answer too.
func NewProbe(of Sockets, log logr.Logger) ProbeFunc {
	v4, v6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback() // in IPv6 clusters
	return probe(of, log,
		modeAt(netip.AddrPortFrom(v4, proxyModePort)), modeAt(netip.AddrPortFrom(v6, proxyModePort)),
		healthAt(netip.AddrPortFrom(v4, proxyHealthPort)), healthAt(netip.AddrPortFrom(v6, proxyHealthPort)))
}

// ProbeProxyMode returns a ProbeFunc for the mode at address only.
func ProbeProxyMode(address netip.AddrPort, of Sockets, log logr.Logger) ProbeFunc {
	return probe(of, log, modeAt(address))
}

// ProbeHealth returns a ProbeFunc for the health at address only.
func ProbeHealth(address netip.AddrPort, of Sockets, log logr.Logger) ProbeFunc {
	return probe(of, log, healthAt(address))
}

// modeAt is a port where kube-proxy reports its mode. What answers 200 is a proxy.
func modeAt(address netip.AddrPort) endpoint {
	e := endpoint{address: address, path: "/proxyMode", limit: maxAnswer}
	e.read = func(code int, body []byte) string {
		if code != http.StatusOK {
			return ""
		}
		mode := strings.TrimSpace(string(body))
		if mode == "" {
			mode = "unknown"
		}
		return fmt.Sprintf("%s answers %q", e.url(), text.Truncate(mode, 64))
	}
	return e
}

// healthAt is a port where a proxy reports its health.
func healthAt(address netip.AddrPort) endpoint {
	e := endpoint{address: address, path: "/healthz", limit: maxAnswer}
	e.read = func(_ int, body []byte) string {
		var answer struct {
			LastUpdated, CurrentTime string
		}
		if json.Unmarshal(bytes.TrimSpace(body), &answer) != nil || answer.LastUpdated == "" || answer.CurrentTime == "" {
			return ""
		}
		return e.url() + " answers as a proxy does"
	}
	return e
}

func probe(of Sockets, log logr.Logger, endpoints ...endpoint) ProbeFunc {
	p := &prober{sockets: of, log: log, logged: map[netip.AddrPort]string{}}
	return func(ctx context.Context, instance string) (string, error) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		// All at the same time: a repair waits for this, and several ports may be silent. The
		// first in order counts, so that the evidence does not alternate.
		findings := make([]chan finding, len(endpoints))
		for i, e := range endpoints {
			findings[i] = make(chan finding, 1)
			wg.Go(func() { findings[i] <- p.probe(ctx, e, instance) })
		}
		var silent error
		for i, found := range findings {
			f := <-found
			p.note(ctx, endpoints[i].address, f)
			if f.evidence != "" {
				return f.evidence, nil
			}
			silent = errors.Join(silent, f.silent)
		}
		return "", silent
	}
}

// prober probes the ports of proxies. Only processes of root count: others may listen at these
// ports, or receive their connections by a rule, as pods with a hostPort do, and must not block
// the agent.
type prober struct {
	sockets Sockets
	log     logr.Logger

	mu     sync.Mutex                // guards everything below
	logged map[netip.AddrPort]string // by port
}

// finding is what a probe of a port has found.
type finding struct {
	evidence string
	silent   error // as ProbeFunc's
	// odd is logged, with details: why an answer does not count.
	odd     string
	details []any
}

// probe probes one port, if a process of root listens before and afterwards.
func (p *prober) probe(ctx context.Context, e endpoint, instance string) finding {
	before, err := p.sockets.Listening(e.address)
	if f, counts := listens(before, err); !counts {
		return f
	}
	answer, silent := e.ask(ctx, instance, p.sockets)
	if silent == nil && answer.here && answer.evidence == "" {
		return finding{}
	}
	after, err := p.sockets.Listening(e.address)
	if f, counts := listens(after, err); !counts {
		return f
	}
	return answered(answer, silent, *before == *after)
}

// listens decides whether a listener may be a proxy. If not, the finding is why.
func listens(l *sockets.Listener, err error) (finding, bool) {
	switch {
	case err != nil:
		return finding{odd: "Could not determine which process listens at kube-proxy's port; only detecting other proxies in the kernel", details: []any{"err", err.Error()}}, false
	case l == nil:
		return finding{}, false
	case l.UID != 0:
		return finding{
			odd:     "A process that is not root's listens at kube-proxy's port; assuming that it is no proxy",
			details: []any{"uid", l.UID},
		}, false
	default:
		return finding{}, true
	}
}

// answered classifies an answer, or silence, of a process of root. Same: the same process has
// listened before and afterwards.
func answered(a answer, silent error, same bool) finding {
	switch {
	case silent != nil:
		return finding{silent: silent}
	case a.err != nil:
		f, _ := listens(nil, a.err)
		return f
	case !a.here: // another process has answered
		return finding{
			silent: errors.New("probing for another proxy: connections are redirected"),
			odd:    "Rules of this node redirect connections to a port of kube-proxy; assuming that the answer is no proxy's",
		}
	case !same:
		return finding{silent: errors.New("probing for another proxy: another process listens now")}
	default:
		return finding{evidence: a.evidence}
	}
}

// note logs what is odd at a port, once.
func (p *prober) note(ctx context.Context, address netip.AddrPort, f finding) {
	text := ""
	if f.odd != "" {
		text = f.odd + fmt.Sprint(f.details...)
	}
	p.mu.Lock()
	changed := p.logged[address] != text
	p.logged[address] = text
	p.mu.Unlock()
	if changed && text != "" && ctx.Err() == nil {
		p.log.Info(f.odd, append([]any{"address", address.String()}, f.details...)...)
	}
}

// answer is the answer of a port.
type answer struct {
	evidence string
	// here: the connection ends in this network namespace. If not, nothing is sent, because
	// rules redirect it. Err: that is unknown.
	here bool
	err  error
}

// ask probes a port. An error means that it did not connect, or answer, in time.
func (e endpoint) ask(ctx context.Context, instance string, of Sockets) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", e.address.String())
	if err != nil {
		return answer{}, fmt.Errorf("probing for another proxy: %w", err)
	}
	defer func() { _ = conn.Close() }()                                              // only read from
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // it is open
	defer stop()
	// While our end is open, the other one exists, too.
	var a answer
	if client, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		port := client.AddrPort()
		a.here, a.err = of.Here(e.address, netip.AddrPortFrom(port.Addr().Unmap(), port.Port()))
	}
	if !a.here {
		return a, nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url(), http.NoBody)
	if err != nil {
		return a, fmt.Errorf("probing for another proxy: %w", err)
	}
	request.Close = true
	if err := request.Write(conn); err != nil {
		return a, unanswered(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, e.limit)), request)
	if err != nil {
		return a, unanswered(err)
	}
	defer func() { _ = response.Body.Close() }() // only read from
	other := response.Header.Get(InstanceHeader)
	if other != "" && (other == instance || e.notOurs) {
		return a, nil
	}
	// An answer that cannot be read completely also counts.
	body, _ := io.ReadAll(response.Body)
	if a.evidence = e.read(response.StatusCode, body); a.evidence != "" && other != "" {
		a.evidence += ", by another nodeproxy-agent"
	}
	return a, nil
}

// unanswered returns the error if it was a timeout. Otherwise the listener does not speak HTTP.
func unanswered(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("probing for another proxy: %w", err)
	}
	return nil
}
