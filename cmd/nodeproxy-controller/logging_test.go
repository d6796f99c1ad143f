package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestJSONLog: every line of a controller that leads and stops is an object with the usual keys, and so
// is the reason why one cannot start.
func TestJSONLog(t *testing.T) {
	r := newRig(t)
	c := r.start("--logging-format=json", "-v=4")
	r.serves(c, "nodeproxy_controller_leading 1")
	r.signal(c, syscall.SIGTERM)
	failing := r.start("--logging-format=json", "--kubeconfig=/nonexistent")
	for _, process := range []*controller{c, failing} {
		r.until("the end", 30*time.Second, func(context.Context) error {
			select {
			case <-process.done:
				return nil
			default:
				return fmt.Errorf("%d runs", process.Process.Pid)
			}
		})
		text, err := os.ReadFile(process.log)
		if err != nil {
			t.Fatal(err)
		}
		last := map[string]any{}
		for line := range strings.Lines(string(text)) {
			last = map[string]any{}
			if err := json.Unmarshal([]byte(line), &last); err != nil || last["ts"] == nil || last["level"] == nil || last["msg"] == nil {
				t.Errorf("not an object with ts, level and msg: %s", line)
			}
		}
		if process == failing && (last["level"] != "error" || !strings.Contains(fmt.Sprint(last["err"]), "/nonexistent")) {
			t.Errorf("it ends with %v", last)
		}
	}
}
