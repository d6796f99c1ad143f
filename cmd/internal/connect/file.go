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

// filePause is how often the file is looked at. Kubernetes swaps a symbolic
// link when it changes a ConfigMap that is mounted, which those who wait for
// events of the file itself do not see; and it is short.
const filePause = 3 * time.Second

// serversFile is a file with servers, one a line. Only one goroutine uses it.
type serversFile struct {
	path string
	log  logr.Logger
	// seen is what was there at the last look, and said that it has been logged.
	seen string
	said bool
}

// read returns the servers in the file; nil: there are none, or they cannot be
// read, as before the file is there. What is wrong is logged when it changes.
func (f *serversFile) read() []server {
	content, err := os.ReadFile(f.path)
	found, bad := parseList(string(content))
	now := string(content)
	if err != nil {
		now = err.Error()
	}
	if f.said && now == f.seen {
		return found
	}
	f.seen, f.said = now, true
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.log.Info("There is no file with addresses of API servers; going on without it, and looking for it again", "file", f.path)
	case err != nil:
		f.log.Error(err, "Could not read the file with addresses of API servers; going on with those that are known, and trying again", "file", f.path)
	case len(bad) > 0:
		f.log.Info("Lines of the file with addresses of API servers are left out: each must be a URL such as https://192.0.2.10:6443", "file", f.path, "leftOut", bad[:min(len(bad), maxTold)], "count", len(bad))
	}
	if err == nil && len(found) == 0 {
		f.log.Info("The file with addresses of API servers has none; going on with those that are known", "file", f.path)
	}
	return found
}

// maxTold bounds how many lines or servers are named.
const maxTold = 16

// parseList reads one server a line, each once. Empty lines and those that
// begin with # mean nothing; bad are those that cannot be read.
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
