package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// nodeinitPackage is the program of each machine's first process.
const nodeinitPackage = "github.com/nodeproxy-io/nodeproxy/test/cluster/cmd/nodeinit"

func (c *Cluster) nodeinitPath() string { return filepath.Join(c.slot.dir(), "nodeinit") }

// ProgramsOnMachine is the directory where a machine finds the programs that are in
// Cluster.Assets, which may be hidden there.
const ProgramsOnMachine = "/run/programs"

// Disks is the cluster's directory for disks and for other files that may be large.
// It goes away with the cluster.
func (c *Cluster) Disks() string { return c.slot.disks() }

// Machine is a place with a disk, and with processes, mounts and a host name of
// its own, as a computer has. It sees the host's files, but /run, /var/lib and
// /var/log are its own.
type Machine struct {
	*Place
	address, address6 netip.Addr

	mu      sync.RWMutex // guards the following; held while they are used
	init    *Process
	starter *starter // nil while it is off
}

// NewMachine makes a machine with the addresses of the node with the given
// number, from 1. It is off: see Boot.
func (c *Cluster) NewMachine(name string, number int) (*Machine, error) {
	if number < 1 || number > maxNodes {
		return nil, fmt.Errorf("a cluster has %d nodes at most", maxNodes)
	}
	place, err := c.newPlace(name, name)
	if err != nil {
		return nil, err
	}
	m := &Machine{Place: place, address: nodeAddress(number), address6: nodeAddress6(number)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machines = append(c.machines, m)
	return m, nil
}

// leaveMachines gives back the threads that are inside machines.
func (c *Cluster) leaveMachines() {
	c.mu.Lock()
	machines := slices.Clone(c.machines)
	c.mu.Unlock()
	for _, m := range machines {
		m.mu.Lock()
		m.leave()
		m.mu.Unlock()
	}
}

// leave gives back the thread that is inside the machine.
func (m *Machine) leave() {
	if m.starter != nil {
		m.starter.close()
		m.starter = nil
	}
}

// Address returns the machine's address.
func (m *Machine) Address() netip.Addr { return m.address }

// Address6 returns the machine's IPv6 address.
func (m *Machine) Address6() netip.Addr { return m.address6 }

// Disk is the directory of the host that holds the machine's own files: run,
// var-lib and var-log. It outlives PowerOff and goes with EraseDisk.
func (m *Machine) Disk() string { return filepath.Join(m.cluster.slot.disks(), m.name) }

// Cgroup is the path, below the root of each hierarchy of control groups, of the
// group that the machine takes for the root: those of its containers are below.
func (m *Machine) Cgroup() string { return filepath.Join(m.cluster.slot.cgroup(), m.name) }

// On reports whether the machine is on.
func (m *Machine) On() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.starter != nil
}

// Boot joins the machine to the network and starts its first process.
func (m *Machine) Boot(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.starter != nil {
		return fmt.Errorf("machine %s is on already", m.name)
	}
	if err := m.boot(ctx); err != nil {
		return errors.Join(fmt.Errorf("starting machine %s: %w", m.name, err), m.powerOff())
	}
	return nil
}

func (m *Machine) boot(ctx context.Context) error {
	// The kernel keeps rules and flows for as long as the namespace lives.
	if err := m.renew(); err != nil {
		return err
	}
	if err := m.plugIn(); err != nil {
		return err
	}
	binds, err := m.makeDisk()
	if err != nil {
		return err
	}
	// The kernel keeps the groups of the containers of before, and kubelets spend a
	// minute on looking for these.
	if err := removeCgroups(ctx, m.Cgroup()); err != nil {
		return err
	}
	groups, err := makeCgroups(m.Cgroup())
	if err != nil {
		return err
	}
	binds = append(binds, groups...)
	attributes := m.attributes()
	attributes.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS
	m.init, err = m.launch(Command{Path: m.cluster.nodeinitPath(), Args: append([]string{"-hostname", m.name}, binds...)},
		attributes, m.onStarter)
	if err != nil {
		return err
	}
	if err := m.init.reportsReady(ctx); err != nil {
		return err
	}
	m.starter = newStarter()
	return m.starter.do(func() error {
		return errors.Join(joinCgroups(m.Cgroup()), enterAll(m.init.PID()))
	})
}

// plugIn joins the machine to the wire. Its network card stays the same, so that
// its neighbors find it at once.
func (m *Machine) plugIn() error {
	addresses := []string{netip.PrefixFrom(m.address, 24).String(), netip.PrefixFrom(m.address6, 64).String()}
	if err := m.cluster.joinWire(m.Place, addresses...); err != nil {
		return err
	}
	err := m.links(func(h *netlink.Handle) error {
		link, err := h.LinkByName("eth0")
		if err != nil {
			return err
		}
		return h.LinkSetHardwareAddr(link, linkAddress(m.address.As4()))
	})
	if err != nil {
		return err
	}
	return m.setSysctls(map[string]string{
		"net/ipv4/ip_forward":               "1",
		"net/ipv6/conf/all/forwarding":      "1",
		"net/ipv4/conf/all/rp_filter":       "0",
		"net/ipv4/conf/default/rp_filter":   "0",
		"net/ipv4/conf/eth0/rp_filter":      "0",
		"net/ipv4/conf/all/send_redirects":  "0",
		"net/ipv4/conf/eth0/send_redirects": "0",
	})
}

// makeDisk creates the machine's missing directories, and returns where
// they appear on the machine.
func (m *Machine) makeDisk() (binds []string, err error) {
	disk := m.Disk()
	// No machine keeps /run when it is off.
	if err := os.RemoveAll(filepath.Join(disk, "run")); err != nil {
		return nil, fmt.Errorf("making the disk of %s: %w", m.name, err)
	}
	clusterDir := m.cluster.slot.dir() // below /run
	for _, directory := range []string{"run" + clusterDir[len("/run"):], "run" + ProgramsOnMachine[len("/run"):], "run/lock", "var-lib", "var-log"} {
		if err := os.MkdirAll(filepath.Join(disk, directory), 0o755); err != nil {
			return nil, fmt.Errorf("making the disk of %s: %w", m.name, err)
		}
	}
	binds = []string{
		disk + "/run:/run", disk + "/var-lib:/var/lib", disk + "/var-log:/var/log",
		clusterDir + ":" + clusterDir, m.cluster.bin + ":" + ProgramsOnMachine,
	}
	for to, text := range replacedFiles {
		// Links lead to /run, where nothing is.
		if info, err := os.Lstat(to); err != nil || !info.Mode().IsRegular() {
			continue
		}
		from := filepath.Join(disk, "replaced", filepath.Base(to))
		if err := os.MkdirAll(filepath.Dir(from), 0o755); err != nil {
			return nil, fmt.Errorf("making the disk of %s: %w", m.name, err)
		}
		if err := os.WriteFile(from, []byte(text), 0o644); err != nil { //nolint:gosec // programs of other users read it
			return nil, fmt.Errorf("making the disk of %s: %w", m.name, err)
		}
		binds = append(binds, from+":"+to)
	}
	return binds, nil
}

// replacedFiles are files that machines have instead of the host's.
var replacedFiles = map[string]string{
	// The host's name servers cannot be reached from machines; asking them takes
	// time.
	"/etc/resolv.conf": "",
	// Settings of the kernel as a kubelet wants them. It would write what differs,
	// and that would be the host's.
	"/proc/sys/vm/overcommit_memory":      "1\n",
	"/proc/sys/vm/panic_on_oom":           "0\n",
	"/proc/sys/kernel/panic":              "10\n",
	"/proc/sys/kernel/panic_on_oops":      "1\n",
	"/proc/sys/kernel/keys/root_maxkeys":  "1000000\n",
	"/proc/sys/kernel/keys/root_maxbytes": "25000000\n",
}

// enterAll brings the calling thread, for good, into the namespaces of a
// process: those that it starts belong there.
func enterAll(pid int) error {
	// A thread that shares its working directory with others cannot enter other
	// mounts.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("parting a thread from the others: %w", err)
	}
	kinds := []struct {
		name string
		flag int
	}{{"net", unix.CLONE_NEWNET}, {"cgroup", unix.CLONE_NEWCGROUP}, {"uts", unix.CLONE_NEWUTS}, {"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS}}
	handles := make([]int, 0, len(kinds)) // opened before /proc is another
	defer func() {
		for _, fd := range handles {
			_ = unix.Close(fd)
		}
	}()
	for _, kind := range kinds {
		fd, err := unix.Open(filepath.Join("/proc", strconv.Itoa(pid), "ns", kind.name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening a namespace of process %d: %w", pid, err)
		}
		handles = append(handles, fd)
	}
	for i, kind := range kinds {
		if err := unix.Setns(handles[i], kind.flag); err != nil {
			return fmt.Errorf("entering the %s namespace of process %d: %w", kind.name, pid, err)
		}
	}
	return nil
}

// Start runs a program on the machine, which must be on. Paths are those of the
// machine.
func (m *Machine) Start(command Command) (*Process, error) {
	// It ends with the machine's first process in any case.
	return m.launch(command, &syscall.SysProcAttr{}, m.inside)
}

// Exec runs a program on the machine, which must be on, with the given input or
// none, and returns what it writes.
func (m *Machine) Exec(ctx context.Context, input io.Reader, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = input
	return m.execute(cmd, m.inside)
}

// inside calls f, which has to be quick, in the machine's namespaces.
func (m *Machine) inside(f func() error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.starter == nil {
		return errors.New("the machine is off")
	}
	return m.starter.do(f)
}

// PowerOff ends all processes of the machine at once, as pulling the plug does,
// and takes it off the network. Its disk stays. It may be off already.
func (m *Machine) PowerOff() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.powerOff()
}

func (m *Machine) powerOff() error {
	var errs []error
	if m.init != nil {
		errs = append(errs, m.init.Kill())
		m.init = nil
	}
	m.leave()
	errs = append(errs, m.links(func(h *netlink.Handle) error {
		link, err := h.LinkByName("eth0")
		if err != nil {
			return nil //nolint:nilerr // it is off the network
		}
		return h.LinkDel(link)
	}))
	return errors.Join(errs...)
}

// EraseDisk removes the machine's files; it must be off. The next Boot finds an
// empty disk.
func (m *Machine) EraseDisk() error {
	if m.On() {
		return fmt.Errorf("erasing the disk of %s: the machine is on", m.name)
	}
	if err := os.RemoveAll(m.Disk()); err != nil {
		return fmt.Errorf("erasing the disk of %s: %w", m.name, err)
	}
	return nil
}
