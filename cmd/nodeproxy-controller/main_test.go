package main

import (
	"bytes"
	"errors"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/cmd/internal/connect"
	"github.com/nodeproxy-io/nodeproxy/cmd/internal/logging"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
)

func TestParseOptions(t *testing.T) {
	var out bytes.Buffer
	got, err := parseOptions([]string{"--kubeconfig", "kc", "--api-server=https://192.0.2.1:6443", "--api-server", "https://[2001:db8::1]:6443",
		"--namespace=ns", "--leader-elect=false", "--metrics-bind-address=0", "--health-probe-bind-address=127.0.0.1:1", "--manage-cluster-objects", "--share-proxy-ports", "-v=2", "--logging-format=json"}, &out)
	if err != nil {
		t.Fatal(err)
	}
	want := options{
		api: connect.Options{Kubeconfig: "kc", APIServers: []string{"https://192.0.2.1:6443", "https://[2001:db8::1]:6443"}}, namespace: "ns",
		metricsBindAddress: "0", healthProbeBindAddress: "127.0.0.1:1", manageClusterObjects: true, agents: agentdeploy.Options{ShareProxyPorts: true}, logging: logging.Options{Verbosity: 2, Format: logging.JSON},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(options{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	defaults, err := parseOptions(nil, &out)
	if err != nil || defaults.namespace != "nodeproxy-system" || !defaults.leaderElect || defaults.manageClusterObjects || defaults.agents.ShareProxyPorts {
		t.Errorf("defaults %+v, %v", defaults, err)
	}
	for _, args := range [][]string{{"extra"}, {"--namespace="}, {"--api-server=192.0.2.1:6443"}, {"--api-server=https://"}, {"--api-server=http://192.0.2.1:8080"}, {"--api-server=https://192.0.2.1:6443/prefix"}, {"--nonsense"}} {
		if _, err := parseOptions(args, &out); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

// An election that ends by itself must not look like a requested stop: some supervisors
// do not restart what exits with status 0.
func TestOutcome(t *testing.T) {
	manager, election := errors.New("no cache"), errors.New("no elector")
	for name, c := range map[string]struct {
		manager, election error
		asked             bool
		want              error
	}{
		"asked":                              {asked: true},
		"election over":                      {election: election, want: election},
		"asked, lease not given back":        {election: election, asked: true},
		"manager failed":                     {manager: manager, want: manager},
		"both failed":                        {manager: manager, election: election, want: manager},
		"manager failed, asked":              {manager: manager, asked: true, want: manager},
		"manager failed at the end":          {manager: manager, election: election, asked: true, want: manager},
		"neither failed, no request to stop": {},
	} {
		if got := outcome(c.manager, c.election, c.asked, logr.Discard()); !errors.Is(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
