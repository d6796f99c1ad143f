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
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
)

const (
	// ProxyModeAddress is where kube-proxy and we say which mode runs.
	ProxyModeAddress = "127.0.0.1:10249"
	proxyModePort    = 10249
	// proxyHealthPort is where kube-proxy, we and some other proxies tell load
	// balancers that the node is well.
	proxyHealthPort = 10256
	// probeTimeout is how long another proxy may take to answer.
	probeTimeout = 2 * time.Second
	// ProbeLimit is how many looks in a row may go unanswered until what listens
	// there is taken for something else than a proxy.
	ProbeLimit = 5
	// maxAnswer bounds what is read of an answer, in bytes.
	maxAnswer = 64 << 10
	// InstanceHeader tells the ports of this agent from those of another one.
	InstanceHeader = "Nodeproxy-Agent"
)

// ProbeFunc asks the ports of proxies on this node whether one answers. It
// returns what tells of it, for people, and an empty string where none does. An
// answer of the agent whose instance is given does not count, nor does one of a
// process that is not root's. An error means that a process of root accepts
// connections there and has not answered in time.
type ProbeFunc func(ctx context.Context, instance string) (sign string, err error)

// Sockets says who has the node's TCP ports: see sockets.Kernel.
type Sockets interface {
	Listening(netip.AddrPort) (*sockets.Listener, error)
	Here(server, client netip.AddrPort) (bool, error)
	Holder(netip.AddrPort) (*sockets.Listener, error)
}

// endpoint is a port where a proxy answers.
type endpoint struct {
	address netip.AddrPort
	path    string
	// read says what an answer tells; empty: it is no proxy's.
	read func(code int, body []byte) string
}

func (e endpoint) url() string { return "http://" + e.address.String() + e.path }

// NewProbe returns a ProbeFunc that asks the ports of kube-proxy on the node's
// loopback addresses: /proxyMode at 10249, and /healthz at 10256, where some
// other proxies answer too.
func NewProbe(of Sockets, log logr.Logger) ProbeFunc {
	v4, v6 := netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback() // of a cluster of IPv6
	return probe(of, log,
		modeAt(netip.AddrPortFrom(v4, proxyModePort)), modeAt(netip.AddrPortFrom(v6, proxyModePort)),
		healthAt(netip.AddrPortFrom(v4, proxyHealthPort)), healthAt(netip.AddrPortFrom(v6, proxyHealthPort)))
}

// ProbeProxyMode returns a ProbeFunc that asks for the mode at address only.
func ProbeProxyMode(address netip.AddrPort, of Sockets, log logr.Logger) ProbeFunc {
	return probe(of, log, modeAt(address))
}

// ProbeHealth returns a ProbeFunc that asks for the health at address only.
func ProbeHealth(address netip.AddrPort, of Sockets, log logr.Logger) ProbeFunc {
	return probe(of, log, healthAt(address))
}

// modeAt is a port where kube-proxy says its mode. What answers 200 is a proxy.
func modeAt(address netip.AddrPort) endpoint {
	e := endpoint{address: address, path: "/proxyMode"}
	e.read = func(code int, body []byte) string {
		if code != http.StatusOK {
			return ""
		}
		mode := strings.TrimSpace(string(body))
		if mode == "" {
			mode = "unknown"
		}
		return fmt.Sprintf("%s answers %q", e.url(), wording.Clip(mode, 64))
	}
	return e
}

// healthAt is a port where a proxy says whether it keeps up, well or not.
func healthAt(address netip.AddrPort) endpoint {
	e := endpoint{address: address, path: "/healthz"}
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
	p := &prober{sockets: of, log: log, said: map[netip.AddrPort]string{}}
	return func(ctx context.Context, instance string) (string, error) {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		// All at the same time: a repair waits for this, and several ports may be
		// silent. The first in order tells, so that the
		// sign does not alternate.
		findings := make([]chan finding, len(endpoints))
		for i, e := range endpoints {
			findings[i] = make(chan finding, 1)
			wg.Go(func() { findings[i] <- p.look(ctx, e, instance) })
		}
		var silent error
		for i, found := range findings {
			f := <-found
			p.note(ctx, endpoints[i].address, f)
			if f.sign != "" {
				return f.sign, nil
			}
			silent = errors.Join(silent, f.silent)
		}
		return "", silent
	}
}

// prober asks the ports of proxies. Only root can be a proxy: others may listen
// where a proxy would, or have a rule lead connections to them, as pods with a
// hostPort do, and must not keep us from our work.
type prober struct {
	sockets Sockets
	log     logr.Logger

	mu   sync.Mutex                // guards everything below
	said map[netip.AddrPort]string // what was last logged of a port
}

// finding is what a look at a port has found.
type finding struct {
	sign   string
	silent error // as ProbeFunc's
	// odd is what is logged, with details: why an answer does not count.
	odd     string
	details []any
}

// look asks one port, if a process of root listens there before and afterwards.
func (p *prober) look(ctx context.Context, e endpoint, instance string) finding {
	before, err := p.sockets.Listening(e.address)
	if f, counts := listens(before, err); !counts {
		return f
	}
	answer, silent := e.ask(ctx, instance, p.sockets)
	if silent == nil && answer.here && answer.sign == "" {
		return finding{}
	}
	after, err := p.sockets.Listening(e.address)
	if f, counts := listens(after, err); !counts {
		return f
	}
	return answered(answer, silent, *before == *after)
}

// listens decides whether what listens at a port may be a proxy. If not, the
// finding says why.
func listens(l *sockets.Listener, err error) (finding, bool) {
	switch {
	case err != nil:
		return finding{odd: "Could not determine who listens where kube-proxy would; going on by the signs of other proxies in the kernel alone", details: []any{"err", err.Error()}}, false
	case l == nil:
		return finding{}, false
	case l.UID != 0:
		return finding{
			odd:     "A process that is not root's listens where kube-proxy would; it is not taken for a proxy. Find it (ss -ltnpe) and have it use another port; if it is a pod's, forbid host networking in its namespace (Pod Security level baseline)",
			details: []any{"uid", l.UID},
		}, false
	default:
		return finding{}, true
	}
}

// answered decides what an answer, or silence, at a port of root tells. Same
// reports whether the same process has listened before and afterwards.
func answered(a answer, silent error, same bool) finding {
	switch {
	case silent != nil:
		return finding{silent: silent}
	case a.err != nil:
		f, _ := listens(nil, a.err)
		return f
	case !a.here: // what listens there has not been asked
		return finding{
			silent: errors.New("asking for another proxy: connections are led elsewhere"),
			odd:    "Rules of this node lead connections for a port of kube-proxy elsewhere; what answers there is not taken for a proxy. Find the pod with this hostPort and have it use another one",
		}
	case !same:
		return finding{silent: errors.New("asking for another proxy: another process listens there now")}
	default:
		return finding{sign: a.sign}
	}
}

// note logs what is odd at a port, once.
func (p *prober) note(ctx context.Context, address netip.AddrPort, f finding) {
	text := ""
	if f.odd != "" {
		text = f.odd + fmt.Sprint(f.details...)
	}
	p.mu.Lock()
	changed := p.said[address] != text
	p.said[address] = text
	p.mu.Unlock()
	if changed && text != "" && ctx.Err() == nil {
		p.log.Info(f.odd, append([]any{"address", address.String()}, f.details...)...)
	}
}

// answer is what a port tells.
type answer struct {
	sign string
	// here: the connection has ended in this network namespace. If not, nothing is
	// asked, because rules lead it elsewhere. Err: it is not known.
	here bool
	err  error
}

// ask asks a port. An error means that it has not been connected, or has not
// answered, in time.
func (e endpoint) ask(ctx context.Context, instance string, of Sockets) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", e.address.String())
	if err != nil {
		return answer{}, fmt.Errorf("asking for another proxy: %w", err)
	}
	defer func() { _ = conn.Close() }()                                              // only read from
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // it is open
	defer stop()
	// While our end is open the other one is there, too.
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
		return a, fmt.Errorf("asking for another proxy: %w", err)
	}
	request.Close = true
	if err := request.Write(conn); err != nil {
		return a, unanswered(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxAnswer)), request)
	if err != nil {
		return a, unanswered(err)
	}
	defer func() { _ = response.Body.Close() }() // only read from
	other := response.Header.Get(InstanceHeader)
	if other != "" && other == instance {
		return a, nil
	}
	// What cannot be read to its end has answered all the same.
	body, _ := io.ReadAll(response.Body)
	if a.sign = e.read(response.StatusCode, body); a.sign != "" && other != "" {
		a.sign += ", by another nodeproxy-agent"
	}
	return a, nil
}

// unanswered returns the error where it took too long. Else what listens there does
// not speak HTTP.
func unanswered(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("asking for another proxy: %w", err)
	}
	return nil
}
