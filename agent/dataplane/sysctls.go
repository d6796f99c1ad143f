package dataplane

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Sysctls is a directory that has sysctls as files, by names such as net/ipv4/ip_forward. Empty: it
// has none, and ignores writes.
type Sysctls string

// Read returns the value of a sysctl. The error names the file, and wraps fs.ErrNotExist if the
// kernel does not have it.
func (d Sysctls) Read(name string) (string, error) {
	if d == "" {
		return "", fs.ErrNotExist
	}
	text, err := os.ReadFile(filepath.Join(string(d), name))
	return strings.TrimSpace(string(text)), err //nolint:wrapcheck // it names the file
}

// Write sets a sysctl. The error names the file.
func (d Sysctls) Write(name, value string) error {
	if d == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(string(d), name), []byte(value), 0o644) //nolint:wrapcheck // it names the file
}
