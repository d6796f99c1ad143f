package ipvs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// sysctls are settings of the kernel, by their files. Those of IPVS are there
// once the kernel has IPVS, in each network namespace.
type sysctls struct{ folder string }

// Sysctl implements Kernel.
func (s *sysctls) Sysctl(name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(s.folder, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the kernel has no sysctl %s: %w", dotted(name), err)
	}
	if err != nil {
		return "", fmt.Errorf("reading the sysctl %s: %w", dotted(name), err)
	}
	return strings.TrimSpace(string(text)), nil
}

// SetSysctl implements Kernel.
func (s *sysctls) SetSysctl(name, value string) error {
	has, err := s.Sysctl(name)
	if err != nil || has == value {
		return err
	}
	err = os.WriteFile(filepath.Join(s.folder, name), []byte(value), 0) // it is there
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("the sysctl %s is %s, not %s, and %s is read-only for the agent: mount the node's /proc/sys/net into its container and name the directory with --sysctl-folder, as config/agent/daemonset.yaml does, or set the value on the node: %w",
			dotted(name), has, value, s.folder, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the sysctl %s is %s, not %s, and cannot be written in the agent's network namespace: run the agent in that of the host, as root, or set the value there: %w",
			dotted(name), has, value, err)
	default:
		return fmt.Errorf("the sysctl %s is %s, not %s: set it on the node: %w", dotted(name), has, value, err)
	}
}
