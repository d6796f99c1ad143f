package agent

import (
	"context"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
)

func TestProbeDistinguishesAgents(t *testing.T) {
	a, _, _ := newAgent(t, func(context.Context, string) (string, error) { return "", nil })
	ask := ownership.ProbeProxyMode(agenttest.Serve(t, a.servers.metrics.Handler.ServeHTTP), agenttest.RootsSockets(), logr.Discard())
	if evidence, err := ask(t.Context(), a.owner.Instance); evidence != "" || err != nil {
		t.Errorf("its own port: %q, %v", evidence, err)
	}
	if evidence, _ := ask(t.Context(), "another"); !strings.Contains(evidence, `answers "iptables", by another nodeproxy-agent`) {
		t.Errorf("the port of another agent: %q", evidence)
	}
	address := agenttest.Serve(t, a.servers.health.Handler.ServeHTTP)
	if evidence, err := ownership.ProbeHealth(address, agenttest.RootsSockets(), logr.Discard())(t.Context(), a.owner.Instance); evidence != "" || err != nil {
		t.Errorf("its own health port: %q, %v", evidence, err)
	}
	if evidence, _ := ownership.ProbeHealth(address, agenttest.RootsSockets(), logr.Discard())(t.Context(), "another"); evidence == "" {
		t.Error("the health port of another agent shows nothing")
	}
}
