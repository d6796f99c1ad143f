package agent

import (
	"context"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
)

func TestProbeTellsAgentsApart(t *testing.T) {
	a, _, _ := newAgent(t, func(context.Context, string) (string, error) { return "", nil })
	ask := ownership.ProbeProxyMode(agenttest.Serve(t, a.servers.metrics.Handler.ServeHTTP), agenttest.RootsSockets(), logr.Discard())
	if sign, err := ask(t.Context(), a.owner.Instance); sign != "" || err != nil {
		t.Errorf("its own port: %q, %v", sign, err)
	}
	if sign, _ := ask(t.Context(), "another"); !strings.Contains(sign, `answers "iptables", by another nodeproxy-agent`) {
		t.Errorf("the port of another agent: %q", sign)
	}
	address := agenttest.Serve(t, a.servers.health.Handler.ServeHTTP)
	if sign, err := ownership.ProbeHealth(address, agenttest.RootsSockets(), logr.Discard())(t.Context(), a.owner.Instance); sign != "" || err != nil {
		t.Errorf("its own health port: %q, %v", sign, err)
	}
	if sign, _ := ownership.ProbeHealth(address, agenttest.RootsSockets(), logr.Discard())(t.Context(), "another"); sign == "" {
		t.Error("the health port of another agent tells nothing")
	}
}
