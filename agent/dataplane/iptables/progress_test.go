package iptables

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// steps counts the progress of a context.
func steps(t *testing.T) (context.Context, *atomic.Int32) {
	t.Helper()
	var n atomic.Int32
	return dataplane.WithProgress(t.Context(), func() { n.Add(1) }), &n
}

func TestEveryProgramIsProgress(t *testing.T) {
	for _, program := range []string{"true", "false"} { // well or not
		tools := &tools{restore: program, save: program, commits: &Commits{}, pace: restorePace()}
		ctx, restored := steps(t)
		_ = tools.apply(ctx, "*nat\nCOMMIT\n")
		ctx, saved := steps(t)
		_, _ = tools.read(ctx)
		if restored.Load() == 0 || saved.Load() == 0 {
			t.Errorf("%s: %d steps of a write, %d of a read", program, restored.Load(), saved.Load())
		}
	}
}

// The child ends once there has been progress twice while it runs.
func TestLongCallIsProgress(t *testing.T) {
	end := filepath.Join(t.TempDir(), "end")
	var n atomic.Int32
	ctx := dataplane.WithProgress(t.Context(), func() {
		if n.Add(1) == 2 {
			if err := os.WriteFile(end, nil, 0o600); err != nil {
				t.Error(err)
			}
		}
	})
	tools := &tools{
		restore: scripts(t, "while [ ! -e "+end+" ]; do sleep 0.01; done") + "-restore", commits: &Commits{},
		pace: pace{least: time.Minute, beat: time.Millisecond},
	}
	if err := tools.apply(ctx, "*nat\nCOMMIT\n"); err != nil {
		t.Fatal(err)
	}
	if n.Load() < 3 {
		t.Errorf("%d steps, want those while it ran and that of its end", n.Load())
	}
}

// One that does not end is no progress for ever: it is stopped, and that is no
// rejection of what it was to write.
func TestStuckCallIsStopped(t *testing.T) {
	tools := &tools{
		restore: scripts(t, "exec sleep 1000") + "-restore", commits: &Commits{},
		pace: pace{least: 50 * time.Millisecond, perLine: time.Millisecond, beat: time.Millisecond},
	}
	ctx, n := steps(t)
	err := tools.apply(ctx, "*nat\nCOMMIT\n")
	if err == nil || isRejection(err) || !strings.Contains(err.Error(), "did not end within") {
		t.Errorf("error %v", err)
	}
	if n.Load() < 2 {
		t.Errorf("%d steps while it ran", n.Load())
	}
	stop, cancel := context.WithCancel(ctx)
	cancel()
	if err := tools.apply(stop, "*nat\nCOMMIT\n"); err == nil || strings.Contains(err.Error(), "did not end") {
		t.Errorf("of an agent that is asked to stop: %v", err)
	}
}

func TestTimeDependsOnLines(t *testing.T) {
	p := restorePace()
	if got := p.limit(usualLimits().rules); got != 3*time.Minute {
		t.Errorf("%s for %d lines", got, usualLimits().rules)
	}
	if p.beat >= time.Minute {
		t.Errorf("progress every %s only", p.beat)
	}
}
