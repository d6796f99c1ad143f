package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// What is planted: a vulnerability of a function of the standard library, in all versions.
const (
	number  = "GO-2099-0001"
	planted = `{"schema_version": "1.3.1", "id": "` + number + `", "modified": "2026-01-01T00:00:00Z", "published": "2026-01-01T00:00:00Z",
"summary": "planted", "details": "planted", "affected": [{"package": {"name": "stdlib", "ecosystem": "Go"},
"ranges": [{"type": "SEMVER", "events": [{"introduced": "0"}, {"fixed": "999.0.0"}]}],
"ecosystem_specific": {"imports": [{"path": "strings", "symbols": ["%s"]}]}}],
"database_specific": {"url": "https://pkg.go.dev/vuln/` + number + `"}}`
)

func TestVulnerabilityThatIsCalled(t *testing.T) {
	t.Parallel()
	directory := plant(t, "ToUpper")
	for name, url := range map[string]string{"directory": "file://" + directory, "server": serve(t, directory)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			printed, err := vulncheck(t, check{database: url})
			if !errors.Is(err, errFound) || !strings.Contains(printed, number) || !strings.Contains(printed, "strings.ToUpper") {
				t.Errorf("the planted vulnerability is called; vulncheck returns %v and prints %s", err, printed)
			}
		})
	}
}

func TestVulnerabilityThatIsNotCalled(t *testing.T) {
	t.Parallel()
	printed, err := vulncheck(t, check{database: "file://" + plant(t, "ToLower")})
	if err != nil || !strings.Contains(printed, "affected by 0 vulnerabilities") {
		t.Errorf("the planted vulnerability is not called; vulncheck returns %v and prints %s", err, printed)
	}
}

func TestNoVulnerability(t *testing.T) {
	t.Parallel()
	printed, err := vulncheck(t, check{database: "file://" + plant(t, "")})
	if err != nil || !strings.Contains(printed, "lists no vulnerability") {
		t.Errorf("the database is empty; vulncheck returns %v and prints %s", err, printed)
	}
}

func TestDatabaseOutOfReach(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	forbidden := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	t.Cleanup(forbidden.Close)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(silent.Close)
	for name, url := range map[string]string{"gone": gone.URL, "forbidden": forbidden.URL, "silent": silent.URL} {
		// The tool would be an error.
		c := check{database: url, tool: []string{"/nonexistent"}, timeout: 100 * time.Millisecond}
		if printed, err := vulncheck(t, c); err != nil || !strings.HasPrefix(printed, "NOT RUN: ") || strings.Count(printed, "\n") != 1 {
			t.Errorf("%s: vulncheck returns %v and prints %q; want one line that reports that it did not run", name, err, printed)
		}
		c.required = true
		if printed, err := vulncheck(t, c); !errors.Is(err, errNotRun) {
			t.Errorf("%s, required: vulncheck returns %v and prints %q", name, err, printed)
		}
	}
	if printed, err := vulncheck(t, check{database: "file://" + t.TempDir()}); err == nil || printed != "" {
		t.Errorf("a directory without a database: vulncheck returns %v and prints %q", err, printed)
	}
}

// build builds govulncheck, unless it is there, once for all tests.
var build = sync.OnceValue(func() error {
	printed, err := exec.Command("../tool.sh", "govulncheck", "-h").CombinedOutput()
	if err != nil {
		return fmt.Errorf("build govulncheck: %w\n%s", err, printed)
	}
	return nil
})

// vulncheck scans a module whose program calls strings.ToUpper and nothing else of strings.
func vulncheck(t *testing.T, c check) (string, error) {
	t.Helper()
	c.module = t.TempDir()
	write(t, filepath.Join(c.module, "go.mod"), "module example.com/planted\n\ngo 1.26.0\n")
	write(t, filepath.Join(c.module, "main.go"), "package main\n\nimport \"strings\"\n\nfunc main() { print(strings.ToUpper(\"a\")) }\n")
	var out bytes.Buffer
	c.out = &out
	if c.tool == nil {
		if err := build(); err != nil {
			t.Fatal(err)
		}
		c.tool = []string{"../tool.sh", "govulncheck"}
	}
	if c.timeout == 0 {
		c.timeout = reachTimeout
	}
	err := c.run(t.Context(), "./...")
	return out.String(), err
}

// plant writes a database with a vulnerability of a function of package strings; with none
// if that is empty.
func plant(t *testing.T, function string) string {
	t.Helper()
	directory := t.TempDir()
	modules := "[]"
	if function != "" {
		modules = `[{"path": "stdlib", "vulns": [{"id": "` + number + `", "modified": "2026-01-01T00:00:00Z", "fixed": "999.0.0"}]}]`
		write(t, filepath.Join(directory, "ID", number+".json"), fmt.Sprintf(planted, function))
	}
	write(t, filepath.Join(directory, "index", "modules.json"), modules)
	write(t, filepath.Join(directory, "index", "db.json"), `{"modified": "2026-01-01T00:00:00Z"}`)
	return directory
}

// serve serves a database as https://vuln.go.dev does, compressed.
func serve(t *testing.T, directory string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, err := os.ReadFile(filepath.Join(directory, filepath.FromSlash(strings.TrimSuffix(r.URL.Path, ".gz"))))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		packed := gzip.NewWriter(w)
		if _, err := io.Copy(packed, bytes.NewReader(content)); err != nil || packed.Close() != nil {
			t.Errorf("serving %s: %v", r.URL.Path, err)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		t.Fatal(err)
	}
}
