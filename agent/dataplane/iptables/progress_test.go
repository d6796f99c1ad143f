package iptables

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

func TestEveryProgramIsProgress(t *testing.T) {
	steps := 0
	ctx := dataplane.WithProgress(t.Context(), func() { steps++ })
	for _, program := range []string{"true", "false"} { // well or not
		tools := &tools{restore: program, save: program, commits: &Commits{}}
		_ = tools.apply(ctx, "*nat\nCOMMIT\n")
		_, _ = tools.read(ctx)
	}
	if steps != 4 {
		t.Errorf("%d steps of 4 programs", steps)
	}
}
