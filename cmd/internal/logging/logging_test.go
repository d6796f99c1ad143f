package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	stdlog "log"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// restore undoes what a logger changes for the whole process.
func restore(t *testing.T) {
	flags := stdlog.Flags()
	t.Cleanup(func() {
		klog.ClearLogger()
		stdlog.SetFlags(flags)
		stdlog.SetOutput(os.Stderr)
	})
}

func parsed(t *testing.T, args ...string) *Options {
	t.Helper()
	o := &Options{}
	flags := flag.NewFlagSet("program", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	o.AddFlags(flags, "sync")
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestJSON: each line is an object with time, level and message, also those of libraries and the last one.
func TestJSON(t *testing.T) {
	restore(t)
	var out bytes.Buffer
	o := parsed(t, "--logging-format=json", "--v=2")
	log := o.Logger(&out)
	log.Info("Synced", "family", "IPv4", "took", 3*time.Second)
	log.V(2).Info("Details", "lines", "a\nb")
	log.V(4).Info("Never seen")
	log.Error(errors.New("no route"), "Cannot write", "node", "node-1")
	klog.Background().WithName("client-go").Info("Of a library")
	klog.Errorf("formatted %d", 7)
	stdlog.Print("http: something")
	o.Exit("program", &out, errors.New("it ends"))
	want := []map[string]any{
		{"level": "info", "msg": "Synced", "family": "IPv4", "took": "3s", "v": 0.0},
		{"level": "info", "msg": "Details", "lines": "a\nb", "v": 2.0},
		{"level": "error", "msg": "Cannot write", "err": "no route", "node": "node-1"},
		{"level": "info", "msg": "Of a library", "logger": "client-go"},
		{"level": "error", "msg": "formatted 7"},
		{"level": "info", "msg": "http: something"},
		{"level": "error", "msg": "Exiting", "err": "it ends"},
	}
	var got []map[string]any
	for line := range strings.Lines(out.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if at, ok := fields["ts"].(string); !ok {
			t.Errorf("no time in %s", line)
		} else if _, err := time.Parse(time.RFC3339Nano, at); err != nil {
			t.Error(err)
		}
		got = append(got, fields)
	}
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(got), len(want), out.String())
	}
	for i := range want {
		for key, value := range want[i] {
			if got[i][key] != value {
				t.Errorf("line %d: %s is %v, want %v", i, key, got[i][key], value)
			}
		}
	}
}

func TestTextIsTheDefault(t *testing.T) {
	restore(t)
	var out bytes.Buffer
	o := parsed(t)
	o.Logger(&out).Info("Synced", "family", "IPv4")
	if got := out.String(); !strings.HasPrefix(got, "I") || !strings.HasSuffix(got, `] "Synced" family="IPv4"`+"\n") {
		t.Errorf("logged %q", got)
	}
	out.Reset()
	o.Exit("program", &out, errors.New("it ends"))
	if got := out.String(); got != "program: it ends\n" {
		t.Errorf("at the end %q", got)
	}
}

func TestUnknownFormat(t *testing.T) {
	flags := flag.NewFlagSet("program", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	(&Options{}).AddFlags(flags, "sync")
	if err := flags.Parse([]string{"--logging-format=yaml"}); err == nil || !strings.Contains(err.Error(), `"yaml": use text or json`) {
		t.Errorf("got %v", err)
	}
}
