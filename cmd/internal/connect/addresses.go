package connect

import (
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
)

// server is the address of an API server: https://192.0.2.10:6443, always with a port.
type server string

// errServerURL describes a valid address.
var errServerURL = errors.New("it must be a URL such as https://192.0.2.10:6443")

// parseServer parses user input.
func parseServer(text string) (server, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errServerURL
	}
	return serverOf(u), nil
}

// serverOf returns the server of a URL.
func serverOf(u *url.URL) server {
	host := u.Host
	if u.Port() == "" {
		port := "443"
		if u.Scheme == "http" {
			port = "80"
		}
		host = net.JoinHostPort(u.Hostname(), port)
	}
	return server((&url.URL{Scheme: u.Scheme, Host: host}).String()) // a zone is escaped
}

// split returns scheme and host.
func (s server) split() (scheme, host string) {
	u, err := url.Parse(string(s))
	if err != nil { // cannot happen: serverOf made it
		return "", ""
	}
	return u.Scheme, u.Host
}

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

// read returns the servers of the file; nil: there are none, or it cannot be read, or there is no
// file. Problems are logged once.
func (f *serversFile) read() []server {
	if f == nil {
		return nil
	}
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
