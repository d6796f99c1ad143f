package iptables

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// sysctls are settings of the kernel, by names such as net/ipv4/ip_forward.
type sysctls interface {
	read(name string) (string, error)
	write(name, value string) error
}

// sysctls are the node's, or none where a Model stands in for its kernel.
func (o *Options) sysctls() sysctls {
	if o.Model != nil && o.SysctlFolder == "" {
		return noSysctls{}
	}
	whole := *o
	whole.complete()
	return sysctlFolder(whole.SysctlFolder)
}

// sysctlFolder has them as files.
type sysctlFolder string

func (f sysctlFolder) read(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(string(f), name))
	return strings.TrimSpace(string(text)), err //nolint:wrapcheck // it names the file
}

func (f sysctlFolder) write(name, value string) error {
	return os.WriteFile(filepath.Join(string(f), name), []byte(value), 0o644) //nolint:wrapcheck // it names the file
}

// noSysctls takes whatever is written.
type noSysctls struct{}

func (noSysctls) read(string) (string, error) { return "", fs.ErrNotExist }
func (noSysctls) write(string, string) error  { return nil }
