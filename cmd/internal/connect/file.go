package connect

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
)

// filePause is how often the file is read. Events of the file would not help: Kubernetes
// replaces a symbolic link to change a mounted ConfigMap.
const filePause = 3 * time.Second

// serversFile is a file with servers, one per line. Only one goroutine uses it.
type serversFile struct {
	path string
	log  logr.Logger
	// seen is the last content or error; logged: it has been logged.
	seen   string
	logged bool
}

// read returns the servers of the file; nil: there are none, or it cannot be read. Problems
// are logged once.
func (f *serversFile) read() []server {
	content, err := os.ReadFile(f.path)
	found, bad := parseList(string(content))
	now := string(content)
	if err != nil {
		now = err.Error()
	}
	if f.logged && now == f.seen {
		return found
	}
	f.seen, f.logged = now, true
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.log.Info("File with addresses of API servers not found; waiting for it", "file", f.path)
	case err != nil:
		f.log.Error(err, "Could not read the file with addresses of API servers; using the last known ones", "file", f.path)
	case len(bad) > 0:
		f.log.Info("Ignoring lines of the file with addresses of API servers: each must be a URL such as https://192.0.2.10:6443", "file", f.path, "lines", bad[:min(len(bad), maxLogged)], "count", len(bad))
	}
	if err == nil && len(found) == 0 {
		f.log.Info("File with addresses of API servers has none; using the last known ones", "file", f.path)
	}
	return found
}

// maxLogged is how many lines are logged.
const maxLogged = 16

// parseList parses one server per line, each once. Empty lines and those that begin with #
// are ignored; bad are invalid ones.
func parseList(text string) (found []server, bad []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		s, err := parseServer(line)
		switch {
		case err != nil:
			bad = append(bad, line)
		case !slices.Contains(found, s):
			found = append(found, s)
		}
	}
	return found, bad
}
