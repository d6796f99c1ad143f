package iptables

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// TestNothingWritesAfterAKilledAgent kills a process while it runs
// iptables-restore, for which a program stands that never ends.
func TestNothingWritesAfterAKilledAgent(t *testing.T) {
	const variable = "NODEPROXY_TEST_RESTORE"
	if program := os.Getenv(variable); program != "" {
		tools := newTools(dataplane.IPv4, nil, &Commits{count: func() (uint32, error) { return 0, nil }})
		tools.restore = program
		t.Fatal(tools.apply(context.Background(), "*nat\nCOMMIT\n"))
	}
	directory := t.TempDir()
	program, started := filepath.Join(directory, "iptables-restore"), filepath.Join(directory, "pid")
	script := "#!/bin/sh\necho $$ >" + started + ".new && mv " + started + ".new " + started + " && exec sleep 600\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	agent := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	agent.Env = append(os.Environ(), variable+"="+program)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	var pid string
	within(t, "the program is started", func() bool {
		text, err := os.ReadFile(started)
		pid = string(bytes.TrimSpace(text))
		return err == nil
	})
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = agent.Wait() // it was killed
	within(t, "the program has ended", func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || bytes.Contains(stat, []byte(") Z ")) // nothing may wait for it
	})
}

// within waits until something holds.
func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}
