package connect

import (
	"errors"
	"net"
	"net/url"
	"strings"
)

// server is where an API server is: https://192.0.2.10:6443, always with a port.
type server string

// errServerURL says what is expected where a server is given.
var errServerURL = errors.New("it must be a URL such as https://192.0.2.10:6443")

// parseServer reads what people write.
func parseServer(text string) (server, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errServerURL
	}
	return serverOf(u), nil
}

// serverOf is the server of a URL.
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
	if err != nil { // serverOf has made it
		return "", ""
	}
	return u.Scheme, u.Host
}

// URLs is a flag that can be repeated.
type URLs []string

// String implements flag.Value.
func (u *URLs) String() string { return strings.Join(*u, ",") }

// Set implements flag.Value.
func (u *URLs) Set(text string) error {
	if _, err := parseServer(text); err != nil {
		return err
	}
	*u = append(*u, text)
	return nil
}
