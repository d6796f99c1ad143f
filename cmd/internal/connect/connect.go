package connect

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
)

const (
	// dialTimeout is how long an address may take to accept a connection before the
	// next one, or the only one again, is tried. The kernel doubles its pauses between
	// attempts, so a longer attempt would notice late that the server is back.
	dialTimeout = 5 * time.Second
	// keepAlive is the pause between probes of an idle connection.
	keepAlive = 30 * time.Second
	// readIdle is after how many idle seconds a connection is pinged, and pingTimeout
	// how many seconds the response may take. A server that vanishes is abandoned after
	// 20 s, not 45 as by default, because rules become stale if a watch is dead. A busy
	// node may need some seconds to respond.
	readIdle    = "10"
	pingTimeout = "10"
	// podServerName is the name that TLS verifies in a pod: certificates of API servers
	// always have it, but rarely all of their addresses.
	podServerName = "kubernetes.default.svc"
)

// APIServersVariable is the environment variable with the same meaning as --api-server,
// for installations whose command line cannot be changed, such as by OLM.
const APIServersVariable = "NODEPROXY_API_SERVERS"

// Options are the flags for the connection to the API server.
type Options struct {
	// Kubeconfig is a file with an address and credentials. Empty: the pod's service
	// account.
	Kubeconfig string
	// APIServers are addresses to use instead of the one of the credentials.
	APIServers []string
	// APIServersFile is a file with further addresses, which may change.
	APIServersFile string
	// FromVariable: APIServers are those of the environment variable. New sets it.
	FromVariable bool
}

// AddFlags adds the flags to those of a program.
func (o *Options) AddFlags(flags *flag.FlagSet) {
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "`file` with the API server's address and credentials; default: those of the pod")
	flags.Func("api-server", "`URL` of an API server, such as https://192.0.2.10:6443, instead of the one in the kubeconfig or the pod's environment; repeat it for several, which are tried in turn. TLS verifies tls-server-name or the host of the kubeconfig, and in a pod "+podServerName+". Do not use the kubernetes Service's address, which nodeproxy itself programs. Default: the environment variable "+APIServersVariable+", whose URLs are separated by spaces or commas", o.addServer)
	flags.StringVar(&o.APIServersFile, "api-servers-file", "", "`file` with URLs of API servers, one per line, as for --api-server. It is read again if it changes. The program starts with a random one, to spread the load. If the file has none, the last known ones are used")
}

func (o *Options) addServer(text string) error {
	_, err := parseServer(text)
	if err == nil {
		o.APIServers = append(o.APIServers, text)
	}
	return err
}

// complete uses the addresses of the environment variable, unless the flag has some.
func (o *Options) complete(variable string) error {
	if len(o.APIServers) > 0 {
		return nil
	}
	for _, text := range strings.FieldsFunc(variable, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		if err := o.addServer(text); err != nil {
			return fmt.Errorf("the environment variable %s contains %q: %w; separate several by spaces or commas", APIServersVariable, text, err)
		}
		o.FromVariable = true
	}
	return nil
}

// Connection is a connection to one of the API servers.
type Connection struct {
	config  *rest.Config
	servers *servers
	file    *serversFile // nil: there is none
	clock   clock.Clock
}

// New prepares a connection. The first request shows whether a server responds, which is
// logged.
func New(o Options, clk clock.Clock, log logr.Logger) (*Connection, error) {
	if err := o.complete(os.Getenv(APIServersVariable)); err != nil {
		return nil, err
	}
	config, err := load(o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return from(config, o, rand.IntN, clk, log)
}

// load returns the credentials and their address.
func load(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("read --kubeconfig %s: %w", kubeconfig, err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("--kubeconfig FILE is required outside of a pod")
	}
	if err != nil {
		return nil, fmt.Errorf("use the pod's service account: %w", err)
	}
	return config, nil
}

// from prepares a connection with given credentials. pick chooses one of n.
func from(config *rest.Config, o Options, pick func(n int) int, clk clock.Clock, log logr.Logger) (*Connection, error) {
	config = rest.CopyConfig(config)
	own, _, err := rest.DefaultServerUrlFor(config) // a kubeconfig may omit the scheme
	if err != nil {
		return nil, fmt.Errorf("parse the API server %q of the kubeconfig: %w", config.Host, err)
	}
	c := &Connection{config: config, clock: clk}
	c.servers = &servers{clock: clk, log: log, pick: pick, fallback: serverOf(own), sources: sources(o)}
	for _, text := range o.APIServers {
		s, err := parseServer(text)
		if err != nil {
			return nil, fmt.Errorf("--api-server %s: %w", text, err)
		}
		c.servers.fixed = append(c.servers.fixed, s)
	}
	if o.APIServersFile != "" {
		c.file = &serversFile{path: o.APIServersFile, log: log}
	}
	c.servers.replace(c.file.read())
	if len(o.APIServers) > 0 || o.APIServersFile != "" {
		// Certificates often have only the name of the credentials' address.
		if config.ServerName == "" && !config.Insecure {
			config.ServerName = own.Hostname()
			if o.Kubeconfig == "" {
				config.ServerName = podServerName
			}
		}
		config.Host = string(c.servers.order()[0])
		config.APIPath = ""
	}
	if order := c.servers.order(); o.Kubeconfig == "" && slices.Equal(order, []server{c.servers.fallback}) {
		log.Info("Using the kubernetes Service to reach the API server, which fails on a node without rules", "apiServer", c.servers.fallback, "whatToDo", c.servers.sources)
	}
	probeConnections()
	config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &failover{next: next, servers: c.servers, clock: clk}
	})
	return c, nil
}

// sources returns how to correct the addresses.
func sources(o Options) string {
	var out []string
	if o.FromVariable {
		out = append(out, "the environment variable "+APIServersVariable)
	} else if len(o.APIServers) > 0 {
		out = append(out, "--api-server")
	}
	if o.APIServersFile != "" {
		out = append(out, "the file "+o.APIServersFile+" (in a pod of nodeproxy, the ConfigMap nodeproxy-api-servers, which the controller writes from spec.apiServer.endpoints of the NodeProxy; without a controller, edit it yourself)")
	}
	if len(out) == 0 && o.Kubeconfig != "" {
		out = append(out, "the kubeconfig "+o.Kubeconfig+", or else --api-server")
	}
	if len(out) == 0 {
		out = append(out, "--api-server, the environment variable "+APIServersVariable+" or --api-servers-file")
	}
	return "set addresses of API servers that respond, with " + strings.Join(out, " or ") + ", or fix the network"
}

// probeConnections makes client-go detect dead connections, which only environment
// variables can do. Existing ones take precedence.
func probeConnections() {
	for name, value := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": readIdle, "HTTP2_PING_TIMEOUT_SECONDS": pingTimeout} {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, value) // only fails for invalid names
		}
	}
}

// Config returns the configuration of clients. They use any API server that responds.
func (c *Connection) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Given returns the URLs of the command line, the environment and the credentials.
func (c *Connection) Given() []string {
	var out []string
	for _, one := range append(slices.Clone(c.servers.fixed), c.servers.fallback) {
		out = append(out, string(one))
	}
	return out
}

// Run follows changes of the file until ctx is done.
func (c *Connection) Run(ctx context.Context) {
	if c.file == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.clock.After(filePause):
			c.servers.replace(c.file.read())
		}
	}
}
