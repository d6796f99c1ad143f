// Package connect is how the programs reach the API server: as whom, at which
// addresses, by which of several, and what is said when none answers.
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
	// dialTimeout is how long an address may take to accept a connection. After
	// it the next one is tried; with one address alone, it is tried afresh. The
	// kernel's own pauses between attempts double, so that one attempt that
	// takes longer would hardly notice that the way is open again.
	dialTimeout = 5 * time.Second
	// keepAlive is the pause between probes of an idle connection.
	keepAlive = 30 * time.Second
	// readIdle and pingTimeout are for how many seconds a connection may be
	// silent until it is asked for a sign of life, and how many it has to give
	// one. A server that is gone without a word is left after 20 s, where
	// client-go would take 45: with a watch that hears nothing, rules are stale.
	// Neither is shorter, because a busy node may need some seconds to answer.
	readIdle    = "10"
	pingTimeout = "10"
	// podServerName is what the certificate of an API server is checked for in a
	// pod: it is always for that name, and rarely for each of its addresses.
	podServerName = "kubernetes.default.svc"
)

// APIServersVariable is the environment variable that says the same as
// --api-server where nobody can change the command line, such as under OLM.
const APIServersVariable = "NODEPROXY_API_SERVERS"

// Options are the flags that say how to reach the API server.
type Options struct {
	// Kubeconfig is a file with an address and credentials. Empty: those of the
	// pod's service account.
	Kubeconfig string
	// APIServers are addresses to use in place of the one that comes with the
	// credentials.
	APIServers URLs
	// APIServersFile is a file with more of them, which may change.
	APIServersFile string
	// FromVariable: APIServers are those of the environment variable. New sets it.
	FromVariable bool
}

// AddFlags adds the flags to a program's others.
func (o *Options) AddFlags(flags *flag.FlagSet) {
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "`file` with the API server's address and credentials; without it, those of the pod are used")
	flags.Var(&o.APIServers, "api-server", "`URL` of an API server, such as https://192.0.2.10:6443, instead of the one in the kubeconfig or the pod's environment; repeat it for several, which are tried in turn. TLS is checked for the name in the kubeconfig, unless tls-server-name is set there, and in a pod for "+podServerName+". Never the kubernetes Service's address, which nodeproxy itself programs. Without this flag the environment variable "+APIServersVariable+" counts, which holds the same, separated by spaces or commas")
	flags.StringVar(&o.APIServersFile, "api-servers-file", "", "`file` with URLs of API servers, one a line, as with --api-server. It is read again when it changes. The program begins at one of them by chance, so that not all programs use the first. While there is none in it, the last known ones are used")
}

// complete takes the addresses of the environment variable, unless the flag names
// some.
func (o *Options) complete(variable string) error {
	if len(o.APIServers) > 0 {
		return nil
	}
	for _, text := range strings.FieldsFunc(variable, func(r rune) bool { return r == ',' || unicode.IsSpace(r) }) {
		if err := o.APIServers.Set(text); err != nil {
			return fmt.Errorf("the environment variable %s holds %q: %w; separate several by spaces or commas", APIServersVariable, text, err)
		}
		o.FromVariable = true
	}
	return nil
}

// overrides reports whether addresses come from elsewhere than the credentials.
func (o *Options) overrides() bool { return len(o.APIServers) > 0 || o.APIServersFile != "" }

// Connection is the way to the API server.
type Connection struct {
	config  *rest.Config
	servers *servers
	file    *serversFile // nil: there is none
	clock   clock.Clock
	log     logr.Logger
}

// New reads the options. It does not ask whether anybody answers: that shows
// with the first request, and is said in the log.
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

// load returns the credentials and the address that comes with them.
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
		return nil, errors.New("this is not a pod, so say how to reach the API server with --kubeconfig FILE")
	}
	if err != nil {
		return nil, fmt.Errorf("use the pod's service account: %w", err)
	}
	return config, nil
}

// from makes a connection with given credentials. pick chooses one of n.
func from(config *rest.Config, o Options, pick func(n int) int, clk clock.Clock, log logr.Logger) (*Connection, error) {
	config = rest.CopyConfig(config)
	own, _, err := rest.DefaultServerUrlFor(config) // a kubeconfig may leave the scheme out
	if err != nil {
		return nil, fmt.Errorf("parse the API server %q of the kubeconfig: %w", config.Host, err)
	}
	c := &Connection{config: config, clock: clk, log: log}
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
	c.servers.replace(c.read())
	if o.overrides() {
		// Certificates are often for the name alone that comes with the credentials.
		if config.ServerName == "" && !config.Insecure {
			config.ServerName = own.Hostname()
			if o.Kubeconfig == "" {
				config.ServerName = podServerName
			}
		}
		config.Host = string(c.servers.order()[0])
		config.APIPath = ""
	}
	c.warnOfService(o)
	probeConnections()
	config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &failover{next: next, servers: c.servers, clock: clk}
	})
	return c, nil
}

// warnOfService says so when all depends on what nodeproxy itself programs.
func (c *Connection) warnOfService(o Options) {
	if o.Kubeconfig == "" && slices.Equal(c.servers.order(), []server{c.servers.fallback}) {
		c.log.Info("Reaching the API server by the kubernetes Service, which nodeproxy itself programs: on a node without rules it does not answer. Give its real addresses", "apiServer", c.servers.fallback, "whatToDo", c.servers.sources)
	}
}

// sources says where addresses come from, for who has to correct them.
func sources(o Options) string {
	var out []string
	if o.FromVariable {
		out = append(out, "the environment variable "+APIServersVariable)
	} else if len(o.APIServers) > 0 {
		out = append(out, "--api-server")
	}
	if o.APIServersFile != "" {
		out = append(out, "the file "+o.APIServersFile+" (in a pod of nodeproxy it is the ConfigMap nodeproxy-api-servers, which the controller writes, by spec.apiServer.endpoints of the NodeProxy; while no controller works, write it yourself)")
	}
	if len(out) == 0 && o.Kubeconfig != "" {
		out = append(out, "the kubeconfig "+o.Kubeconfig+", or else --api-server")
	}
	if len(out) == 0 {
		out = append(out, "--api-server, the environment variable "+APIServersVariable+" or --api-servers-file")
	}
	return "give addresses at which API servers answer, by " + strings.Join(out, " or ") + ", or mend the way to them"
}

// probeConnections has client-go notice connections that are dead. It can be
// told by the environment alone; who has set it there knows better.
func probeConnections() {
	for name, value := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": readIdle, "HTTP2_PING_TIMEOUT_SECONDS": pingTimeout} {
		if os.Getenv(name) == "" {
			_ = os.Setenv(name, value) // fails for names that cannot be
		}
	}
}

// Config is how to make clients. They use whichever API server answers.
func (c *Connection) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Given are the URLs of the API servers that came with the command line, the environment
// and the credentials.
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
		timer := c.clock.NewTimer(filePause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
			c.servers.replace(c.read())
		}
	}
}

// read returns what is in the file now; nil: nothing that is of use.
func (c *Connection) read() []server {
	if c.file == nil {
		return nil
	}
	return c.file.read()
}
