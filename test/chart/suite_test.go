package chart_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// path is one in this repository.
func path(parts ...string) string {
	return filepath.Join(append([]string{"..", ".."}, parts...)...)
}

var chartDirectory = path("charts", "nodeproxy")

// try runs a program with more variables, and returns what it prints.
func try(ctx context.Context, variables []string, program string, args ...string) (out string, err error) {
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(ctx, program, args...)
	command.Env = append(os.Environ(), variables...)
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w\n%s", filepath.Base(program), strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// run is try for what must not fail.
func run(t *testing.T, variables []string, program string, args ...string) string {
	t.Helper()
	out, err := try(t.Context(), variables, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// helm runs it without a cluster.
func helm(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, nil, path("hack", "tool.sh"), append([]string{"helm"}, args...)...)
}
