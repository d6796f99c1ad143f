package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/command"
	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

// TestExitCodes: the exit codes that docs/kubectl-plugin.md lists, in every format.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		state, args string
		want        int
	}{
		{"healthy", "status", command.ExitOK},
		{"agent-silent", "status", command.ExitFindings},
		{"no-permission-for-pods", "status", command.ExitFindings}, // a skipped check
		{"retained", "status", command.ExitFindings},               // a warning
		{"no-permissions", "status", command.ExitError},
		{"doctor-healthy", "doctor", command.ExitOK},
		{"doctor-dns-without-pods", "doctor", command.ExitFindings},
		{"incomplete", "doctor shop/wbe", command.ExitError},
		{"healthy", "rules node-1", command.ExitOK},
		{"agent-silent", "rules node-2", command.ExitOK}, // notes do not matter
		{"healthy", "rules node-9", command.ExitError},
		{"healthy", "diff node-1", command.ExitOK},
		{"healthy", "diff node-1 node-2", command.ExitFindings},
		{"healthy", "diff node-9", command.ExitError},
		{"healthy", "trace --from=shop/web-1 --to=shop/web:web", command.ExitOK},
		{"healthy", "trace --from=shop/web-1 --to=shop/no-app", command.ExitOK}, // rejected
		{"healthy", "trace --from=shop/web-1", command.ExitError},
	} {
		t.Run(tt.state+"/"+tt.args, func(t *testing.T) {
			t.Parallel()
			state, err := recorded.Load(filepath.Join(states, tt.state))
			if err != nil {
				t.Fatal(err)
			}
			kubeconfig := "--kubeconfig=" + writeKubeconfig(t, state.Serve(t))
			for _, format := range []string{"table", "json"} {
				out, errs, got := execute(t, state.Now, append(strings.Fields(tt.args), kubeconfig, "--output="+format)...)
				if got != tt.want {
					t.Errorf("-o %s: exit code %d, want %d: %s%s", format, got, tt.want, out, errs)
				}
				if format == "json" && got != command.ExitError {
					versioned(t, strings.Fields(tt.args)[0], out)
				}
			}
		})
	}
	for args, want := range map[string]int{"version": command.ExitOK, "help": command.ExitOK, "stauts": command.ExitError, "status --nope": command.ExitError, "status -o xml": command.ExitError} {
		if _, _, got := execute(t, atNoTime, strings.Fields(args)...); got != want {
			t.Errorf("%s: exit code %d, want %d", args, got, want)
		}
	}
}

// versioned: each document has an API version, and the kind of its command.
func versioned(t *testing.T, name, text string) {
	t.Helper()
	var got struct{ APIVersion, Kind string }
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{"status": "ClusterStatus", "rules": "NodeRules", "diff": "RulesDiff", "doctor": "DoctorReport", "trace": "Trace"}
	if got.APIVersion != "cli.nodeproxy.io/v1alpha1" || got.Kind != kinds[name] {
		t.Errorf("%s prints %+v", name, got)
	}
}
