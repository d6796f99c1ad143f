package programs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
)

// Variable names the environment variable with the directory of programs that were built
// before. They may be built with other flags than Into's, such as the race detector.
const Variable = "NODEPROXY_PROGRAMS"

// The packages of nodeproxy's programs.
const (
	Controller = module + "/cmd/nodeproxy-controller"
	Agent      = module + "/cmd/nodeproxy-agent"
	Plugin     = module + "/cmd/kubectl-nodeproxy"
)

const module = "github.com/nodeproxy-io/nodeproxy"

// Into puts the program of each package into a directory, under the last element of the
// package's path: from the directory that Variable names, or else built here. A program
// missing from that directory is an error, so that a run never mixes two builds.
func Into(ctx context.Context, dir string, packages ...string) error {
	if built := os.Getenv(Variable); built != "" {
		for _, pkg := range packages {
			name := path.Base(pkg)
			if err := place(filepath.Join(built, name), filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("taking %s from $%s: %w", name, Variable, err)
			}
		}
		return nil
	}
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-o", dir + string(filepath.Separator)}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %v: %w: %s", packages, err, out)
	}
	return nil
}

// place links a program to another path, or copies it to another file system. Tests
// replace and delete what they were given, so a symbolic link would not do.
func place(from, to string) error {
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755) //nolint:gosec // it is a program
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
