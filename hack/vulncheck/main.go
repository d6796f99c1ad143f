package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	// database is the Go project's; GOVULNDB overrides it, as for govulncheck.
	database = "https://vuln.go.dev"
	// reachTimeout bounds how long a network that drops packets delays a run.
	reachTimeout = 10 * time.Second
	// found is the exit status by which govulncheck reports findings.
	found = 3
)

var (
	errFound  = errors.New("known vulnerabilities reach the code: update the modules, or Go itself, to the versions named as fixed above")
	errNotRun = errors.New("not run, but required: make the database reachable, or set GOVULNDB to a mirror")
)

// check is one run.
type check struct {
	database string   // URL: https, http or file
	required bool     // an unreachable database is an error
	tool     []string // govulncheck and arguments before its own
	module   string   // directory
	timeout  time.Duration
	out      io.Writer
}

func main() {
	c := check{database: os.Getenv("GOVULNDB"), tool: []string{"hack/tool.sh", "govulncheck"}, module: ".", timeout: reachTimeout, out: os.Stdout}
	if c.database == "" {
		c.database = database
	}
	flag.BoolVar(&c.required, "required", false, "fail if the database cannot be reached")
	flag.Parse()
	if err := c.run(context.Background(), "./cmd/..."); err != nil {
		fmt.Fprintln(os.Stderr, "vulncheck:", err)
		os.Exit(1)
	}
}

// run scans packages. Most of the time none has a vulnerability, and knowing that
// takes seconds; the call graph is computed only if one has.
func (c *check) run(ctx context.Context, packages string) error {
	reached, err := c.reach(ctx)
	if err != nil {
		return err
	}
	if !reached {
		if c.required {
			return errNotRun
		}
		return nil
	}
	var imports bytes.Buffer
	affected, err := c.scan(ctx, &imports, "-scan", "package", packages)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, imports.Bytes())
	}
	if !affected {
		fmt.Fprintf(c.out, "%s lists no vulnerability of any package\n", c.database)
		return nil
	}
	affected, err = c.scan(ctx, c.out, "-scan", "symbol", packages)
	if err != nil {
		return err
	}
	if affected {
		return errFound
	}
	return nil
}

// reach reports whether the database answers. A missing directory is an error, because the
// network is not the cause.
func (c *check) reach(ctx context.Context) (bool, error) {
	where, err := url.Parse(c.database)
	if err != nil {
		return false, fmt.Errorf("GOVULNDB is not a URL: %w", err)
	}
	if where.Scheme == "file" {
		if _, err := os.Stat(filepath.Join(where.Path, "index", "db.json")); err != nil {
			return false, fmt.Errorf("GOVULNDB names a directory without a database: %w", err)
		}
		return true, nil
	}
	if problem := c.ask(ctx, where.JoinPath("index", "db.json.gz")); problem != nil {
		fmt.Fprintf(c.out, "NOT RUN: vulncheck: the vulnerability database cannot be reached: %v. Set GOVULNDB to a mirror.\n", problem)
		return false, nil
	}
	return true, nil
}

func (c *check) ask(ctx context.Context, where *url.URL) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), http.NoBody)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", where, answer.Status)
	}
	return nil
}

// scan runs govulncheck and reports whether it has findings.
func (c *check) scan(ctx context.Context, out io.Writer, args ...string) (bool, error) {
	command := exec.CommandContext(ctx, c.tool[0], append(append(c.tool[1:len(c.tool):len(c.tool)], "-C", c.module, "-db", c.database), args...)...)
	command.Stdout, command.Stderr = out, os.Stderr
	err := command.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == found {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("run govulncheck: %w", err)
	}
	return false, nil
}
