package connect

import (
	"errors"
	"net"
	"net/url"
	"strings"
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
