package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runsMain makes this test binary the agent, so that what main makes of arguments,
// the environment and signals is tested as a user meets it.
const runsMain = "NODEPROXY_AGENT_TEST_RUNS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(runsMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// agentProcess is the agent as a process that ends with the test.
func agentProcess(t *testing.T, environment []string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append([]string{runsMain + "=1"}, environment...)
	return cmd
}

func TestExitStatusAndOutput(t *testing.T) {
	for name, tt := range map[string]struct {
		args, environment []string
		status            int
		want              string // on stderr
		usage             bool
	}{
		"help":             {args: []string{"--help"}, want: "nodeproxy-agent cleanup [flags]", usage: true},
		"help for cleanup": {args: []string{"cleanup", "-h"}, want: "nodeproxy-agent cleanup [flags]", usage: true},
		"unknown flag": {args: []string{"--frob"}, status: 1, usage: true,
			want: "nodeproxy-agent: reading the command line: flag provided but not defined: -frob\n"},
		"malformed number": {args: []string{"--v", "much"}, status: 1, usage: true,
			want: `nodeproxy-agent: reading the command line: invalid value "much" for flag -v`},
		"malformed API server": {args: []string{"--api-server", "192.0.2.1"}, status: 1, usage: true,
			want: "it must be a URL such as https://192.0.2.10:6443\n"},
		"unknown argument": {args: []string{"start"}, status: 1, want: `nodeproxy-agent: unknown argument "start"`},
		"unknown variant":  {args: []string{"--iptables-variant", "nft"}, status: 1, want: "use auto, nf_tables or legacy\n"},
		"no node name":     {status: 1, want: "pass --node-name, or set NODE_NAME"},
		"node name from the environment": {environment: []string{"NODE_NAME=node-1"}, args: []string{"--kubeconfig", "/nonexistent"},
			status: 1, want: "nodeproxy-agent: read --kubeconfig /nonexistent"},
		"node name from the flag": {args: []string{"--node-name", "node-1", "--kubeconfig", "/nonexistent"},
			status: 1, want: "nodeproxy-agent: read --kubeconfig /nonexistent"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			cmd := agentProcess(t, tt.environment, tt.args...)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			if got := cmd.ProcessState.ExitCode(); got != tt.status {
				t.Errorf("exit status %d, want %d", got, tt.status)
			}
			if stdout.Len() > 0 {
				t.Errorf("on stdout: %s", stdout.String())
			}
			if !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("stderr does not hold %q:\n%s", tt.want, stderr.String())
			}
			if shown := strings.Contains(stderr.String(), "\nFlags:\n"); shown != tt.usage {
				t.Errorf("the usage is shown: %t, want %t", shown, tt.usage)
			}
			if strings.Contains(stderr.String(), "goroutine ") {
				t.Errorf("it panicked:\n%s", stderr.String())
			}
		})
	}
}

// TestHelpShowsEveryFlag: each that manifests and users may pass is there, with a text.
func TestHelpShowsEveryFlag(t *testing.T) {
	var out bytes.Buffer
	if _, err := parse([]string{"--help"}, "", &out); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	for _, name := range []string{
		"api-server", "api-servers-file", "health-probe-bind-address", "iptables-variant", "ipvs-exclude-cidrs", "kubeconfig", "logging-format",
		"metrics-bind-address", "namespace", "node-name", "proxy-health-bind-address", "state-dir", "sysctl-directory", "v",
	} {
		_, after, found := strings.Cut(out.String(), "\n  -"+name+" ")
		if text, _, _ := strings.Cut(after, "\n  -"); !found || len(text) < 20 {
			t.Errorf("--%s is not described: %q", name, text)
		}
	}
}

// TestSignals: the agent stops with status 0 as the kubelet and a user ask it to,
// while no API server answers, and prints that rules stay, as text or JSON. It runs in
// a network namespace of its own, which has no rules to touch.
func TestSignals(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a network namespace needs root")
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443"}}],
		"users": [{"name": "u", "user": {"token": "x"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for signal, format := range map[syscall.Signal]string{syscall.SIGTERM: "text", syscall.SIGINT: "json"} {
		t.Run(signal.String(), func(t *testing.T) {
			cmd := agentProcess(t, []string{"NODE_NAME=node-1", "PATH=" + os.Getenv("PATH")}, "--kubeconfig", kubeconfig, "--state-dir", t.TempDir(),
				"--proxy-health-bind-address", "0", "--metrics-bind-address", "0", "--health-probe-bind-address", "0", "--logging-format", format)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			output := bufio.NewReader(stderr)
			for _, want := range []string{`"Starting"`, `"No API server answers`} {
				readUntil(t, output, format, want)
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			readUntil(t, output, format, `"Stopped; the rules in the kernel stay"`)
			if _, err := io.Copy(io.Discard, output); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("after %s: %v", signal, err)
			}
		})
	}
}

// readUntil reads lines up to one that holds a text. The process is killed after a
// minute, which ends its output.
func readUntil(t *testing.T, output *bufio.Reader, format, text string) {
	t.Helper()
	for {
		line, err := output.ReadString('\n')
		if fields := map[string]any{}; format == "json" && err == nil {
			if err := json.Unmarshal([]byte(line), &fields); err != nil || fields["ts"] == nil || fields["level"] == nil || fields["msg"] == nil {
				t.Errorf("not an object with ts, level and msg: %s", line)
			}
		}
		if strings.Contains(line, text) {
			return
		}
		if err != nil {
			t.Fatalf("the output ends without %q: %v", text, err)
		}
	}
}
