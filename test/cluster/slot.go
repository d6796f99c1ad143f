package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	// stateRoot holds a directory and a lock file for each cluster. It is the same
	// for all processes of the machine, as the names of namespaces are.
	stateRoot = "/run/nodeproxy-test"
	netnsRoot = "/run/netns"
	// diskRoot holds the disks of machines, which may be larger than /run.
	diskRoot = "/var/lib/nodeproxy-test"

	maxClusters     = 100
	leftRunningFile = "kept"
)

// slot is a number on this machine that one cluster holds. While its owner
// lives it holds a lock on the slot's file; the kernel frees the lock when the
// owner dies, whatever the way, and then the slot's remains may be removed.
type slot struct {
	number int
	lock   *os.File
}

// prefix begins the name of each namespace and link of the slot.
func (s slot) prefix() string { return fmt.Sprintf("np%d-", s.number) }

// dir is the slot's directory for keys, logs and etcd's data.
func (s slot) dir() string { return filepath.Join(stateRoot, strconv.Itoa(s.number)) }

// disks is the slot's directory for the disks of its machines.
func (s slot) disks() string { return filepath.Join(diskRoot, strconv.Itoa(s.number)) }

// cgroup is the name of the control group, at the root of each hierarchy, below
// which the containers of the slot's machines are.
func (s slot) cgroup() string { return fmt.Sprintf("nodeproxy-test-%d", s.number) }

func (s slot) lockPath() string { return s.dir() + ".lock" }

// rootLink is the slot's only link in the root namespace.
func (s slot) rootLink() string { return s.prefix() + "root" }

// acquire takes the first free slot and removes what a dead owner left in any.
func acquire(ctx context.Context) (slot, error) {
	if _, err := sweep(ctx, false, io.Discard); err != nil {
		return slot{}, err
	}
	for number := range maxClusters {
		s := slot{number: number}
		taken, err := s.tryLock()
		if err != nil {
			return slot{}, err
		}
		if !taken {
			continue
		}
		if s.leftRunning() {
			s.unlock()
			continue
		}
		// A container may share our links but not our directories.
		if _, err := netlink.LinkByName(s.rootLink()); err == nil {
			s.release()
			continue
		}
		if err := os.MkdirAll(s.dir(), 0o700); err != nil {
			s.unlock()
			return slot{}, fmt.Errorf("creating the cluster's directory: %w", err)
		}
		return s, nil
	}
	return slot{}, fmt.Errorf("%d clusters are running already: remove those that are not needed with `make demo-clean`", maxClusters)
}

// tryLock takes the slot's lock if it is free.
func (s *slot) tryLock() (bool, error) {
	if err := os.MkdirAll(stateRoot, 0o755); err != nil {
		return false, fmt.Errorf("creating the directory of local clusters: %w", err)
	}
	file, err := os.OpenFile(s.lockPath(), os.O_CREATE|os.O_RDWR, 0o644)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // the last owner of all removed the directory just now
	}
	if err != nil {
		return false, fmt.Errorf("locking cluster %d: %w", s.number, err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		return false, fmt.Errorf("locking cluster %d: %w", s.number, err)
	}
	// The last owner removes the file while it holds the lock: a lock on the
	// removed file is worth nothing.
	var mine, now syscall.Stat_t
	if syscall.Fstat(int(file.Fd()), &mine) != nil || syscall.Stat(s.lockPath(), &now) != nil || mine.Ino != now.Ino {
		_ = file.Close()
		return false, nil
	}
	_ = file.Truncate(0)
	_, _ = fmt.Fprintf(file, "%d\n", os.Getpid())
	s.lock = file
	return true, nil
}

// unlock gives the slot back, keeping what belongs to it.
func (s *slot) unlock() {
	if s.lock != nil {
		_ = s.lock.Close()
		s.lock = nil
	}
}

// release gives the slot back and removes its lock file.
func (s *slot) release() {
	if s.lock == nil {
		return
	}
	_ = os.Remove(s.lockPath())
	_ = os.Remove(stateRoot) // fails while there are other clusters
	s.unlock()
}

// keep marks the slot's cluster as one that outlives its owner.
func (s slot) keep() error {
	return os.WriteFile(filepath.Join(s.dir(), leftRunningFile), []byte(bootID()), 0o600)
}

// leftRunning reports whether the slot's cluster was left running on purpose. After a
// reboot nothing of it is left but its directory.
func (s slot) leftRunning() bool {
	text, err := os.ReadFile(filepath.Join(s.dir(), leftRunningFile))
	return err == nil && string(text) == bootID()
}

func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// Clean removes the clusters whose owner has died, and those that were left
// running on purpose (Cluster.Leave), with all their processes: those with the
// given numbers, all when none is given. Clusters in use by a living process
// stay. It prints what it removes.
func Clean(ctx context.Context, out io.Writer, numbers ...int) error {
	if err := Check(); err != nil {
		return err
	}
	removed, err := sweep(ctx, true, out, numbers...)
	if err == nil && removed == 0 {
		fmt.Fprintln(out, "No local cluster to remove.")
	}
	return err
}

// NumbersWithMachines returns the numbers of all clusters on this host that have
// machines with disks.
func NumbersWithMachines() ([]int, error) {
	entries, err := os.ReadDir(diskRoot)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("looking for local clusters: %w", err)
	}
	var numbers []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// sweep removes the remains of all free slots, or of those given.
func sweep(ctx context.Context, leftRunningToo bool, out io.Writer, only ...int) (removed int, err error) {
	numbers, err := usedNumbers()
	if err != nil {
		return 0, err
	}
	for _, number := range numbers {
		if len(only) > 0 && !slices.Contains(only, number) {
			continue
		}
		s := slot{number: number}
		taken, lockErr := s.tryLock()
		if lockErr != nil {
			return removed, lockErr
		}
		if !taken {
			pid, _ := os.ReadFile(s.lockPath())
			fmt.Fprintf(out, "Cluster np%d is in use by process %s; left alone.\n", number, strings.TrimSpace(string(pid)))
			continue
		}
		if s.leftRunning() && !leftRunningToo {
			s.unlock()
			continue
		}
		if err := s.remove(ctx); err != nil {
			s.unlock()
			return removed, err
		}
		s.release()
		removed++
		fmt.Fprintf(out, "Removed cluster np%d.\n", number)
	}
	return removed, nil
}

// usedNumbers finds the slots of which anything exists.
func usedNumbers() ([]int, error) {
	var numbers []int
	add := func(text string) {
		if n, err := strconv.Atoi(text); err == nil && n < maxClusters {
			numbers = append(numbers, n)
		}
	}
	for _, directory := range []string{stateRoot, diskRoot} {
		entries, err := os.ReadDir(directory)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("looking for local clusters: %w", err)
		}
		for _, e := range entries {
			add(strings.TrimSuffix(e.Name(), ".lock"))
		}
	}
	spaces, err := os.ReadDir(netnsRoot)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("looking for local clusters: %w", err)
	}
	name := regexp.MustCompile(`^np(\d+)-`)
	for _, e := range spaces {
		if m := name.FindStringSubmatch(e.Name()); m != nil {
			add(m[1])
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers), nil
}

// remove ends all processes in the slot's namespaces and removes the
// namespaces, the link in the root namespace and the directory. It returns an error if
// something is left.
func (s slot) remove(ctx context.Context) error {
	spaces, err := filepath.Glob(filepath.Join(netnsRoot, s.prefix()+"*"))
	if err != nil {
		return err
	}
	if err := killInside(ctx, spaces); err != nil {
		return err
	}
	var errs []error
	if link, err := netlink.LinkByName(s.rootLink()); err == nil {
		if err := netlink.LinkDel(link); err != nil {
			errs = append(errs, fmt.Errorf("removing link %s: %w", s.rootLink(), err))
		}
	}
	for _, path := range spaces {
		errs = append(errs, deleteNamespace(filepath.Base(path)))
	}
	errs = append(errs, unshareNamespaces(), removeCgroups(ctx, s.cgroup()))
	for _, dir := range []string{s.disks(), s.dir()} {
		if err := os.RemoveAll(dir); err != nil {
			errs = append(errs, fmt.Errorf("removing the cluster's directory: %w", err))
		}
	}
	_ = os.Remove(diskRoot) // fails while there are other clusters
	return errors.Join(append(errs, s.look())...)
}

// killInside ends all processes of the given namespaces and waits until they
// are gone. It looks in the namespace, not for remembered process ids, which may
// belong to other processes by now.
func killInside(ctx context.Context, spaces []string) error {
	inodes := map[uint64]bool{}
	for _, path := range spaces {
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err == nil {
			inodes[st.Ino] = true
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		pids, err := pidsInside(inodes)
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v of the cluster do not end: look at them with `ps -fp %d`", pids, pids[0])
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// pidsInside lists the processes whose network namespace is one of inodes.
func pidsInside(inodes map[uint64]bool) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		var st syscall.Stat_t
		// A process that ended meanwhile, or that waits to be reaped, has no
		// namespace any more.
		if err := syscall.Stat(filepath.Join("/proc", e.Name(), "ns/net"), &st); err == nil && inodes[st.Ino] {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
