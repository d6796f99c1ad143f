package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/httpport"
)

// maxCheckConnections is how many connections the health-check node ports of one IP
// family have together.
const maxCheckConnections = 1024

// ServiceKey names a Service.
type ServiceKey struct{ Namespace, Name string }

// Check is what the health-check node port of a Service answers.
type Check struct {
	Port uint16
	// LocalEndpoints is the number of distinct IP addresses of the Service's
	// ready endpoints on this node.
	LocalEndpoints int
}

// ChecksOptions are what Checks need.
type ChecksOptions struct {
	// Network is tcp4 or tcp6.
	Network string
	// Healthy reports whether the rules can be relied on, see ServesTraffic.
	Healthy func() bool
	// Changed is called after Troubles have changed.
	Changed func()
	Clock   clock.Clock
	Log     logr.Logger
}

// Checks serve the health-check node ports of one IP family. Load balancers ask
// there whether this node has endpoints of a Service with external traffic
// policy Local.
type Checks struct {
	options ChecksOptions
	wake    chan struct{}

	mu        sync.Mutex // guards everything below
	wanted    map[ServiceKey]Check
	addresses func() ([]netip.Addr, error)
	failed    map[place]error // open ones that have ceased to serve
	troubles  map[place]string

	// limit is one for all ports: a tenant decides how many there are.
	limit *httpport.Limit
	open  map[place]*httpport.Server // belongs to Run
}

// place is where a Service's health check is served.
type place struct {
	service ServiceKey
	address netip.AddrPort
}

func (p place) trouble(err error) string {
	return fmt.Sprintf("health-check node port %d of Service %s/%s: %v", p.address.Port(), p.service.Namespace, p.service.Name, err)
}

// NewChecks returns Checks that serve nothing until they run.
func NewChecks(options ChecksOptions) *Checks {
	return &Checks{
		options: options, wake: make(chan struct{}, 1),
		failed: map[place]error{}, troubles: map[place]string{},
		limit: httpport.NewLimit(maxCheckConnections), open: map[place]*httpport.Server{},
	}
}

// Set says what to serve from now on. New counts are answered at once; ports
// are opened and closed soon after. addresses returns which of the node's
// addresses to listen on; it is asked again and again, because they come and
// go. Nil: all, present and future ones. turn is the context for which this
// holds, the one that Run gets: once it is done nothing is set any more.
func (c *Checks) Set(turn context.Context, wanted map[ServiceKey]Check, addresses func() ([]netip.Addr, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if turn.Err() != nil {
		return // it would be served in the next turn, which knows nothing yet
	}
	c.wanted, c.addresses = wanted, addresses
	c.poke()
}

// Troubles are the ports that cannot be opened, for people; one sentence each,
// sorted.
func (c *Checks) Troubles() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Values(c.troubles))
}

// Run serves until ctx is done, and closes all ports then. It may be called
// again after it has returned: what to serve has to be set again then.
func (c *Checks) Run(ctx context.Context) {
	for ctx.Err() == nil {
		again := c.reconcile(ctx)
		c.sleep(ctx, again)
	}
	c.mu.Lock()
	c.wanted, c.addresses = nil, nil
	c.mu.Unlock()
	// Everything, whatever is wanted: another proxy may need the ports now.
	for p, server := range c.open {
		_ = server.Close() // it serves no more, whatever this says
		delete(c.open, p)
	}
	c.mu.Lock()
	c.failed = map[place]error{}
	c.mu.Unlock()
	c.tell(map[place]string{})
}

// reconcile opens and closes ports. It reports whether to look again after a
// pause even if nothing is set.
func (c *Checks) reconcile(ctx context.Context) bool {
	c.mu.Lock()
	wanted, addresses, failed := c.wanted, c.addresses, c.failed
	c.failed = map[place]error{}
	c.mu.Unlock()
	places, err := c.places(wanted, addresses)
	troubles := map[place]string{}
	if err != nil { // what is open stays
		troubles[place{}] = err.Error()
		places = map[place]struct{}{}
		for p := range c.open {
			if wanted[p.service].Port == p.address.Port() {
				places[p] = struct{}{}
			}
		}
	}
	// First close, because a port may go from one Service to another.
	for p, server := range c.open {
		why, dead := failed[p]
		if _, stays := places[p]; stays && !dead {
			continue
		}
		_ = server.Close() // it serves no more, whatever this says
		delete(c.open, p)
		if dead { // not at once again: it could fail as fast for ever
			troubles[p] = p.trouble(why)
			delete(places, p)
		}
	}
	for p := range places {
		if c.open[p] != nil {
			continue
		}
		if err := c.listen(ctx, p); err != nil && ctx.Err() == nil {
			troubles[p] = p.trouble(err)
		}
	}
	c.tell(troubles)
	return len(troubles) > 0 || addresses != nil && len(wanted) > 0
}

// places are where to listen.
func (c *Checks) places(wanted map[ServiceKey]Check, addresses func() ([]netip.Addr, error)) (map[place]struct{}, error) {
	out := map[place]struct{}{}
	if len(wanted) == 0 {
		return out, nil
	}
	everywhere := netip.IPv4Unspecified()
	if c.options.Network == "tcp6" {
		everywhere = netip.IPv6Unspecified()
	}
	list := []netip.Addr{everywhere}
	if addresses != nil {
		var err error
		if list, err = addresses(); err != nil {
			return nil, fmt.Errorf("health-check node ports: %w", err)
		}
	}
	for service, check := range wanted {
		for _, a := range list {
			out[place{service, netip.AddrPortFrom(a, check.Port)}] = struct{}{}
		}
	}
	return out, nil
}

// listen opens a port and serves on it.
func (c *Checks) listen(ctx context.Context, p place) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, c.options.Network, p.address.String())
	if err != nil {
		return err
	}
	server := httpport.NewServer(c.limit, c.handler(p.service))
	c.open[p] = server
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			c.mu.Lock()
			c.failed[p] = err
			c.mu.Unlock()
			c.poke()
		}
	}()
	return nil
}

// tell logs the troubles that are new or over, and notes them all: whoever reads a
// trouble in the status finds it in the log.
func (c *Checks) tell(troubles map[place]string) {
	c.mu.Lock()
	former := c.troubles
	c.mu.Unlock()
	appeared, ended := differ(troubles, former), differ(former, troubles)
	if len(appeared) > 0 {
		c.options.Log.Info("Could not open all health-check node ports; trying again every 5 s, everything else goes on. Until then load balancers may send those Services no connections by this node. See what holds the port (ss -ltnp)", "count", len(appeared), "troubles", appeared[:min(len(appeared), maxTold)])
	}
	if len(ended) > 0 && len(troubles) == 0 {
		c.options.Log.Info("All health-check node ports are open now", "network", c.options.Network)
	}
	c.mu.Lock()
	c.troubles = troubles
	c.mu.Unlock()
	if len(appeared)+len(ended) > 0 && c.options.Changed != nil {
		c.options.Changed()
	}
}

// maxTold bounds how many troubles one line of the log names.
const maxTold = 10

// differ returns what a says and b does not, sorted.
func differ(a, b map[place]string) []string {
	var out []string
	for p, text := range a {
		if b[p] != text {
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return out
}

func (c *Checks) sleep(ctx context.Context, again bool) {
	var due <-chan time.Time
	if again {
		timer := c.options.Clock.NewTimer(bindPause)
		defer timer.Stop()
		due = timer.C()
	}
	select {
	case <-ctx.Done():
	case <-c.wake:
	case <-due:
	}
}

func (c *Checks) poke() {
	select {
	case c.wake <- struct{}{}:
	default: // a poke is waiting already
	}
}

// checkAnswer is the body of an answer, in the form in which kube-proxy gives
// it.
type checkAnswer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// handler answers for a Service, whatever path and method are asked for.
func (c *Checks) handler(service ServiceKey) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c.mu.Lock()
		count := c.wanted[service].LocalEndpoints // 0 once it is not wanted any more
		c.mu.Unlock()
		body := checkAnswer{LocalEndpoints: count, ServiceProxyHealthy: c.options.Healthy()}
		body.Service.Namespace, body.Service.Name = service.Namespace, service.Name
		text, err := json.MarshalIndent(body, "", "\t")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		code := http.StatusServiceUnavailable
		if count > 0 && body.ServiceProxyHealthy {
			code = http.StatusOK
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(count))
		w.WriteHeader(code)
		_, _ = w.Write(text) // who asked has gone: nobody to tell
	})
}

// Summary joins troubles into one sentence for a status, or returns "".
func Summary(troubles []string) string {
	const shown = 3
	if len(troubles) == 0 {
		return ""
	}
	text := strings.Join(troubles[:min(len(troubles), shown)], ", ")
	if more := len(troubles) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return "not all health-check node ports could be opened, so load balancers may take this node for one without endpoints of those Services (" + text + "): see what holds the ports on this node (ss -ltnp); the agent tries again every 5 s"
}
