package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupPatterns match the control group with the given path in the one hierarchy
// of version 2, and in all of version 1.
func cgroupPatterns(path string) []string {
	return []string{filepath.Join(cgroupRoot, path), filepath.Join(cgroupRoot, "*", path)}
}

// makeCgroups makes a control group with the given path in each hierarchy, and
// shows where these appear on a machine: in the places of the roots.
func makeCgroups(path string) (binds []string, err error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("looking for control groups: %w", err)
	}
	for mount := range strings.Lines(string(mounts)) {
		words := strings.Fields(mount) // device, directory, kind of file system, ...
		if len(words) < 3 || words[2] != "cgroup" && words[2] != "cgroup2" {
			continue
		}
		group := filepath.Join(words[1], path)
		if err := os.MkdirAll(group, 0o755); err != nil {
			return nil, fmt.Errorf("making a control group: %w", err)
		}
		if err := handDown(words[1], path); err != nil {
			return nil, fmt.Errorf("making a control group: %w", err)
		}
		binds = append(binds, group+":"+words[1])
	}
	return binds, nil
}

// handDown gives the groups on the path from the root of a hierarchy what they
// need before other groups can be made in them: the processors and the memory
// in version 1, the controllers in version 2.
func handDown(root, path string) error {
	above := root
	for name := range strings.SplitSeq(path, "/") {
		below := filepath.Join(above, name)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile(filepath.Join(above, file))
			if err != nil || len(bytes.TrimSpace(text)) == 0 {
				continue // another hierarchy, or version 2
			}
			if err := os.WriteFile(filepath.Join(below, file), text, 0); err != nil {
				return err
			}
		}
		controllers, err := os.ReadFile(filepath.Join(above, "cgroup.controllers"))
		if err == nil {
			for controller := range strings.FieldsSeq(string(controllers)) {
				if err := os.WriteFile(filepath.Join(above, "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
					return err
				}
			}
		}
		above = below
	}
	return nil
}

// joinCgroups brings the calling thread into the control groups with the given
// path in all hierarchies of version 1. In version 2 threads cannot go alone.
func joinCgroups(path string) error {
	lists, err := filepath.Glob(filepath.Join(cgroupRoot, "*", path, "tasks"))
	if err != nil {
		return err
	}
	for _, list := range lists {
		if err := os.WriteFile(list, []byte("0"), 0); err != nil {
			return fmt.Errorf("entering a control group: %w", err)
		}
	}
	return nil
}

// removeCgroups removes the control groups with the given path and all below,
// which have no process any more, or only such as are about to end.
func removeCgroups(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		err := tryRemoveCgroups(path)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("removing the control groups of containers: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func tryRemoveCgroups(group string) error {
	var directories []string
	for _, pattern := range cgroupPatterns(group) {
		roots, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, root := range roots {
			err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
				if err == nil && entry.IsDir() {
					directories = append(directories, path)
				}
				if errors.Is(err, fs.ErrNotExist) { // its owner removed it meanwhile
					return nil
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	for _, directory := range slices.Backward(directories) { // those inside first
		if err := os.Remove(directory); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
