package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// newNamespace makes a named network namespace and enters it with the calling
// thread.
func newNamespace(name string) (handle netns.NsHandle, err error) {
	handle = netns.None()
	err = withNamespaces(func() error {
		if err := shareNamespaces(); err != nil {
			return err
		}
		handle, err = netns.NewNamed(name)
		return err
	})
	return handle, err
}

// shareNamespaces makes the directory of network namespaces a shared mount of its
// own, as "ip netns" does when it is first used. If that came only later, each
// of our namespaces would be mounted twice, once out of sight, and could not be
// removed any more.
func shareNamespaces() error {
	err := unix.Mount("", netnsRoot, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // not a mount yet
		err = unix.Mount(netnsRoot, netnsRoot, "none", unix.MS_BIND|unix.MS_REC, "")
		if err == nil {
			err = unix.Mount("", netnsRoot, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return fmt.Errorf("making %s a shared mount: %w", netnsRoot, err)
	}
	return nil
}

// unshareNamespaces reverts shareNamespaces once no namespaces are there.
func unshareNamespaces() error {
	return withNamespaces(func() error {
		left, err := os.ReadDir(netnsRoot)
		if err != nil || len(left) > 0 {
			return err
		}
		err = unix.Unmount(netnsRoot, 0)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EBUSY) { // not a mount, or in use
			return nil
		}
		return err
	})
}

// withNamespaces calls f while no other process of this package changes the
// directory of network namespaces itself.
func withNamespaces(f func() error) error {
	if err := os.MkdirAll(netnsRoot, 0o755); err != nil {
		return err
	}
	// Of the directory above: that of the namespaces is about to be mounted over.
	above, err := os.Open(filepath.Dir(netnsRoot))
	if err != nil {
		return err
	}
	defer above.Close()
	if err := unix.Flock(int(above.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", above.Name(), err)
	}
	return f()
}

// deleteNamespace removes a namespace's name; the kernel frees the namespace
// and its links with the last process or handle that uses it.
func deleteNamespace(name string) error {
	err := netns.DeleteNamed(name)
	if errors.Is(err, unix.EINVAL) {
		// A run that was killed between creating the file and mounting the
		// namespace on it leaves a plain file.
		err = os.Remove(filepath.Join(netnsRoot, name))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing network namespace %s: %w", name, err)
	}
	return nil
}
