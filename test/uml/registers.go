package uml

import (
	"context"
	_ "embed" // the library
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// compiler builds the library.
const compiler = "gcc"

// registersSource is a library without which User-mode Linux does not start on processors with AMX.
//
//go:embed preload/xstate.c
var registersSource []byte

// hasAMX reports whether this machine's processor has AMX.
func hasAMX() bool {
	info, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && strings.Contains(string(info), " amx_tile")
}

// registersLibrary builds the library in a directory and returns its path; empty: it is not needed.
func registersLibrary(ctx context.Context, directory string) (string, error) {
	if !hasAMX() {
		return "", nil
	}
	source, library := filepath.Join(directory, "xstate.c"), filepath.Join(directory, "xstate.so")
	if err := os.WriteFile(source, registersSource, 0o600); err != nil {
		return "", fmt.Errorf("writing a library for User-mode Linux: %w", err)
	}
	out, err := exec.CommandContext(ctx, compiler, "-O2", "-shared", "-fPIC", "-o", library, source).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building a library for User-mode Linux: %w: %s", err, out)
	}
	return library, nil
}
