package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

// TestClock: ages refer to the API server's clock, whatever the local clock shows.
func TestClock(t *testing.T) {
	t.Parallel()
	state, err := recorded.Load(filepath.Join(states, "agent-silent"))
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := writeKubeconfig(t, state.Serve(t))
	hourAhead := state.Now.Add(time.Hour)
	for _, args := range []string{"status", "diff node-1", "rules node-1"} {
		right, wrong := shown(t, kubeconfig, state.Now, strings.Fields(args)...), shown(t, kubeconfig, hourAhead, strings.Fields(args)...)
		if wrong != right {
			t.Errorf("with a clock that is an hour ahead:\n%s\notherwise\n%s", wrong, right)
		}
	}
	if got := shown(t, kubeconfig, hourAhead, "doctor"); !strings.Contains(got, "  the clock of this machine is 60m ahead of the API server's") {
		t.Errorf("doctor does not mention the clock:\n%s", got)
	}
}
