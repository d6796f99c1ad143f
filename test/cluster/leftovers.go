package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
)

// Leftovers lists what exists on this machine of the cluster with the given
// number: links, network namespaces, control groups, mounts, files and processes. After Stop or Clean
// that is nothing. It reads the kernel's own lists, not what the package
// remembers.
func Leftovers(number int) ([]string, error) {
	s := slot{number: number}
	var left []string
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, s.prefix()) {
			left = append(left, "link "+l.Attrs().Name)
		}
	}
	patterns := append(cgroupPatterns(s.cgroup()), filepath.Join(netnsRoot, s.prefix()+"*"), s.dir(), s.disks(), s.lockPath())
	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		left = append(left, paths...)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	for mount := range strings.Lines(string(mounts)) {
		if strings.Contains(mount, s.dir()+"/") || strings.Contains(mount, s.disks()+"/") {
			left = append(left, "mount "+mount)
		}
	}
	// All programs of a cluster have a path in its directory among their
	// arguments.
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, path := range commands {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it ended just now
		}
		if bytes.Contains(text, []byte(s.dir()+"/")) {
			words := strings.ReplaceAll(strings.TrimRight(string(text), "\x00"), "\x00", " ")
			left = append(left, fmt.Sprintf("process %s: %s", filepath.Base(filepath.Dir(path)), words))
		}
	}
	return left, nil
}

// look returns an error for everything that is left of a removed cluster. It is called while the
// slot is locked: afterwards another cluster may have it.
func (s slot) look() error {
	left, err := Leftovers(s.number)
	errs := []error{err}
	for _, thing := range left {
		if thing != s.lockPath() {
			errs = append(errs, fmt.Errorf("left behind: %s", thing))
		}
	}
	return errors.Join(errs...)
}
