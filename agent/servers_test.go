package agent

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/sockets"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestAPortOfAnothersIsReported: what else answers the kubelet's probes is named
// in the message of Programmed.
func TestAPortOfAnothersIsReported(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Close() }) // nothing was written
	a, _, _, _ := owningAgent(t)
	a.options.ProbeAddress = other.Addr().String()
	a.options.Sockets = &agenttest.Sockets{Listeners: []*sockets.Listener{{UID: 1000}}}
	a.servers = a.newServers("")
	mustSync(t, a)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); a.servers.kubelet.Run(ctx) }()
	message := func() string {
		s, f := a.refresh()
		return meta.FindStatusCondition(status.Build(s, f, nil).Conditions, v1alpha1.ConditionProgrammed).Message
	}
	for message() == "The desired state is programmed." {
		select {
		case <-a.poke: // as its problems change
		case <-ctx.Done():
			t.Fatal("not within 10 s: a problem")
		}
	}
	for _, want := range []string{v1alpha1.MessageRestrictions, a.options.ProbeAddress, "uid 1000", "--health-probe-bind-address"} {
		if got := message(); !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	cancel()
	<-done
	if got := message(); strings.Contains(got, "uid 1000") {
		t.Errorf("when it serves no more: %q", got)
	}
}

func TestHoldersOfPorts(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:19256": "127.0.0.1:19256",
		"[::1]:19256":     "[::1]:19256",
		":19256":          "[::]:19256",
		"localhost:19256": "",
		"19256":           "",
		":http":           "",
	} {
		got := ""
		if at, ok := bound(address); ok {
			got = at.String()
		}
		if got != want {
			t.Errorf("%s is bound at %q, want %q", address, got, want)
		}
	}
	a, _, _ := newAgent(t, func(context.Context, string) (string, error) { return "", nil })
	if got := a.holder("127.0.0.1:1"); got != "" {
		t.Errorf("without sockets: %q", got)
	}
	a.options.Sockets = &agenttest.Sockets{Listeners: []*sockets.Listener{nil, {UID: 7}}}
	for _, want := range []string{"does not listen", "uid 7"} {
		if got := a.holder("127.0.0.1:1"); !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}
