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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/httpport"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
)

const (
	// maxCheckConnections bounds the connections of the health-check node ports of one IP family
	// together.
	maxCheckConnections = 1024
	// maxLogged bounds how many problems one line of the log lists.
	maxLogged = 10
)

// Check is the answer of a Service's health-check node port.
type Check struct {
	Port uint16
	// LocalEndpoints is the number of distinct IP addresses of the Service's ready endpoints on
	// this node.
	LocalEndpoints int
}

// ChecksOptions configure Checks.
type ChecksOptions struct {
	// Network is tcp4 or tcp6.
	Network string
	// Healthy reports whether load balancers can rely on the rules, see ServesTraffic.
	Healthy func() bool
	// Changed is called after Problems has changed.
	Changed func()
	Clock   clock.Clock
	Log     logr.Logger
}

// Checks serve the health-check node ports of one IP family. There load balancers ask whether
// this node has endpoints of a Service with external traffic policy Local.
type Checks struct {
	options ChecksOptions
	wake    pause.Wake

	mu        sync.Mutex // guards everything below
	desired   map[dataplane.ServiceName]Check
	addresses func() ([]netip.Addr, error)
	failed    map[place]error // open ones that have stopped serving
	problems  map[place]string

	// limit is one for all ports: tenants decide how many there are.
	limit *httpport.Limit
	open  map[place]*httpport.Server // belongs to Run
}

// place is where a Service's health check is served.
type place struct {
	service dataplane.ServiceName
	address netip.AddrPort
}

func (p place) problem(err error) string {
	return fmt.Sprintf("health-check node port %d of Service %s: %v", p.address.Port(), p.service, err)
}

// NewChecks returns Checks that serve nothing until they run.
func NewChecks(options ChecksOptions) *Checks {
	return &Checks{
		options: options, wake: pause.NewWake(),
		failed: map[place]error{}, problems: map[place]string{},
		limit: httpport.NewLimit(maxCheckConnections), open: map[place]*httpport.Server{},
	}
}

// Set sets what to serve. New counts are answered at once; ports are opened and closed soon after.
// addresses returns on which of the node's addresses to listen; it is called repeatedly, because
// they change. Nil: on all, present and future ones. owned is the context of Run: once it is
// done, Set has no effect.
func (c *Checks) Set(owned context.Context, desired map[dataplane.ServiceName]Check, addresses func() ([]netip.Addr, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if owned.Err() != nil {
		return // the next Run would serve it, although nothing is known yet then
	}
	c.desired, c.addresses = desired, addresses
	c.wake.Up()
}

// Problems describes the ports that cannot be opened, one human-readable sentence each, sorted.
func (c *Checks) Problems() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Values(c.problems))
}

// Run serves until ctx is done, and then closes all ports. It may be called again after it has
// returned, which requires another Set.
func (c *Checks) Run(ctx context.Context) {
	for ctx.Err() == nil {
		c.wake.For(ctx, c.options.Clock, c.reconcile(ctx))
	}
	c.mu.Lock()
	c.desired, c.addresses = nil, nil
	c.mu.Unlock()
	// All, whatever is desired: another proxy may need the ports now.
	for p := range c.open {
		c.close(p)
	}
	c.mu.Lock()
	c.failed = map[place]error{}
	c.mu.Unlock()
	c.setProblems(map[place]string{})
}

// reconcile opens and closes ports. It returns when to do so again even without Set.
func (c *Checks) reconcile(ctx context.Context) time.Duration {
	c.mu.Lock()
	desired, addresses, failed := c.desired, c.addresses, c.failed
	c.failed = map[place]error{}
	c.mu.Unlock()
	places, err := c.places(desired, addresses)
	problems := map[place]string{}
	if err != nil { // what is open stays
		problems[place{}] = err.Error()
		places = sets.Set[place]{}
		for p := range c.open {
			if desired[p.service].Port == p.address.Port() {
				places.Insert(p)
			}
		}
	}
	// First close, because a port may move from one Service to another.
	for p := range c.open {
		why, dead := failed[p]
		if dead { // do not reopen at once: it could fail again at once, forever
			problems[p] = p.problem(why)
		}
		if dead || !places.Has(p) {
			c.close(p)
			places.Delete(p)
		}
	}
	for p := range places {
		if c.open[p] != nil {
			continue
		}
		if err := c.listen(ctx, p); err != nil && ctx.Err() == nil {
			problems[p] = p.problem(err)
		}
	}
	c.setProblems(problems)
	if len(problems) > 0 || addresses != nil && len(desired) > 0 {
		return bindPause
	}
	return pause.Forever
}

func (c *Checks) close(p place) {
	_ = c.open[p].Close() // it no longer serves, even with an error
	delete(c.open, p)
}

// places are where to listen.
func (c *Checks) places(desired map[dataplane.ServiceName]Check, addresses func() ([]netip.Addr, error)) (sets.Set[place], error) {
	out := sets.Set[place]{}
	if len(desired) == 0 {
		return out, nil
	}
	list := []netip.Addr{netip.IPv4Unspecified()}
	if c.options.Network == "tcp6" {
		list = []netip.Addr{netip.IPv6Unspecified()}
	}
	if addresses != nil {
		var err error
		if list, err = addresses(); err != nil {
			return nil, fmt.Errorf("health-check node ports: %w", err)
		}
	}
	for service, check := range desired {
		for _, a := range list {
			out.Insert(place{service, netip.AddrPortFrom(a, check.Port)})
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
			c.wake.Up()
		}
	}()
	return nil
}

// setProblems replaces the problems, and logs those that begin first, so that the log has every
// problem of the status.
func (c *Checks) setProblems(problems map[place]string) {
	c.mu.Lock()
	former := c.problems
	c.mu.Unlock()
	begun, ended := missing(problems, former), missing(former, problems)
	if len(begun) > 0 {
		c.options.Log.Info("Could not open all health-check node ports; retrying every 5 s", "count", len(begun), "problems", begun[:min(len(begun), maxLogged)])
	}
	if len(ended) > 0 && len(problems) == 0 {
		c.options.Log.Info("All health-check node ports are open now", "network", c.options.Network)
	}
	c.mu.Lock()
	c.problems = problems
	c.mu.Unlock()
	if len(begun)+len(ended) > 0 && c.options.Changed != nil {
		c.options.Changed()
	}
}

// missing returns the texts of a that b does not have, sorted.
func missing(a, b map[place]string) []string {
	a = maps.Clone(a)
	maps.DeleteFunc(a, func(p place, text string) bool { return b[p] == text })
	return slices.Sorted(maps.Values(a))
}

// checkAnswer is the body of an answer, in kube-proxy's format.
type checkAnswer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// handler answers for a Service, on any path and method.
func (c *Checks) handler(service dataplane.ServiceName) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c.mu.Lock()
		count := c.desired[service].LocalEndpoints // 0 once it is no longer desired
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
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(count))
		respond(w, code, "application/json", text)
	})
}

// Summary joins problems into one sentence for a status; empty without any.
func Summary(problems []string) string {
	const shown = 3
	if len(problems) == 0 {
		return ""
	}
	text := strings.Join(problems[:min(len(problems), shown)], ", ")
	if more := len(problems) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return "not all health-check node ports could be opened, so load balancers may assume that this node has no endpoints of those Services (" + text + "): find the programs that have the ports on this node (ss -ltnp); the agent retries every 5 s"
}
