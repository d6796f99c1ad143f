package iptables

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sysctlFolder has sysctls as files, by names such as net/ipv4/ip_forward. Empty: it has none, and
// ignores writes.
type sysctlFolder string

func (f sysctlFolder) read(name string) (string, error) {
	if f == "" {
		return "", fs.ErrNotExist
	}
	text, err := os.ReadFile(filepath.Join(string(f), name))
	return strings.TrimSpace(string(text)), err //nolint:wrapcheck // it names the file
}

func (f sysctlFolder) write(name, value string) error {
	if f == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(string(f), name), []byte(value), 0o644) //nolint:wrapcheck // it names the file
}

const sysctlRouteLocalnet = "net/ipv4/conf/all/route_localnet"

// routeLocalnet lets NodePorts answer on 127.0.0.1. It returns a warning if
// that is not possible.
func (d *Dataplane) routeLocalnet(c *config) string {
	if !c.nodePorts.Localhost {
		return ""
	}
	if value, err := d.sysctls.read(sysctlRouteLocalnet); err == nil && value == "1" {
		return ""
	}
	if err := d.sysctls.write(sysctlRouteLocalnet, "1"); err != nil {
		return fmt.Sprintf("NodePorts do not answer on 127.0.0.1: %v; let the agent write it (in a container by --sysctl-folder, as config/agent/daemonset.yaml does), or set spec.settings.nodePorts.localhost to Disabled", err)
	}
	return ""
}
