package uml

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// serial is the line whose other end Run listens to.
const (
	serialPath  = "/run/output"
	serialMajor = 4
	serialMinor = 64
)

// Inside reports whether this process runs in a kernel that Run has booted.
func Inside() bool { return os.Getenv(directoryVariable) != "" }

// Report hands a result over to the caller of Run.
func Report(result []byte) error {
	if !Inside() {
		return errors.New("this is not a kernel that this package has booted")
	}
	if err := os.WriteFile(filepath.Join(os.Getenv(directoryVariable), resultFile), result, 0o600); err != nil {
		return fmt.Errorf("handing a result over: %w", err)
	}
	return nil
}

// LoaderOfModules is the program that loads modules in the kernel that Run has
// booted; it takes modprobe's arguments.
func LoaderOfModules() string { return filepath.Join(os.Getenv(directoryVariable), loaderFile) }

// Main runs the tests; call it from TestMain.
func Main(m *testing.M) {
	Boot()
	os.Exit(m.Run())
}

// Boot does the work of a kernel's first process if this is that: it makes what
// programs expect of a machine, runs what Run was asked for, and powers off. In
// other processes it does nothing.
func Boot() {
	if os.Getpid() != 1 || !Inside() {
		return
	}
	directory := os.Getenv(directoryVariable)
	status, err := boot(directory)
	if err != nil {
		fmt.Println("in User-mode Linux:", err) // on the console
	} else if err := os.WriteFile(filepath.Join(directory, statusFile), []byte(strconv.Itoa(status)), 0o600); err != nil {
		fmt.Println("passing on the exit status:", err)
	}
	unix.Sync()
	fmt.Println("powering off:", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

func boot(directory string) (status int, err error) {
	var todo order
	text, err := os.ReadFile(filepath.Join(directory, orderFile))
	if err == nil {
		err = json.Unmarshal(text, &todo)
	}
	if err != nil {
		return 0, fmt.Errorf("reading what to run: %w", err)
	}
	if err := setUp(directory); err != nil {
		return 0, fmt.Errorf("setting up the machine: %w", err)
	}
	output, err := openSerial()
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, fmt.Errorf("opening no input: %w", err)
	}
	env := append(slices.Clone(todo.Env), directoryVariable+"="+directory, "TMPDIR="+temp, "HOME="+home,
		"PATH="+programs+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:"+variable(todo.Env, "PATH"))
	process, err := os.StartProcess(todo.Args[0], todo.Args, &os.ProcAttr{
		Dir: todo.Dir, Env: lastOfEach(env), Files: []*os.File{null, output, output},
	})
	if err != nil {
		return 0, fmt.Errorf("starting %s: %w", todo.Args[0], err)
	}
	status, err = waitFor(process.Pid)
	return status, errors.Join(err, drain(output))
}

// waitFor waits for a process, and for all orphans meanwhile.
func waitFor(pid int) (status int, err error) {
	for {
		var ended unix.WaitStatus
		which, err := unix.Wait4(-1, &ended, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("waiting for the program: %w", err)
		case which == pid && ended.Signaled():
			return 128 + int(ended.Signal()), nil // as shells report it
		case which == pid:
			return ended.ExitStatus(), nil
		}
	}
}

const (
	// temp is the directory of temporary files, home that of the user, and programs
	// one with programs that go before those of the machine.
	temp     = "/run/tmp"
	home     = "/run/home"
	programs = "/run/programs-first"
	hostname = "uml"
)

// setUp makes a machine of a kernel: file systems, programs, the loopback
// interface, IPv6, and the loader of modules.
func setUp(directory string) error {
	for _, mount := range [][2]string{
		{"/proc", "proc"}, {"/sys", "sysfs"}, {"/run", "tmpfs"}, {"/var/lib", "tmpfs"}, {"/var/log", "tmpfs"},
	} {
		if err := unix.Mount(mount[1], mount[0], mount[1], 0, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", mount[0], err)
		}
	}
	for _, dir := range []string{temp, home, programs} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("making a directory: %w", err)
		}
	}
	if err := os.WriteFile("/proc/sys/kernel/modprobe", []byte(filepath.Join(directory, loaderFile)), 0); err != nil {
		return fmt.Errorf("setting the loader of modules: %w", err)
	}
	// Without one it is "(none)", which kube-apiserver cannot use in its lease.
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return fmt.Errorf("naming the machine: %w", err)
	}
	if err := useLegacy(); err != nil {
		return err
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		if out, err := exec.Command(filepath.Join(directory, loaderFile), "ipv6").CombinedOutput(); err != nil {
			return fmt.Errorf("loading IPv6: %w: %s", err, out)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("switching the loopback interface on: %w", err)
	}
	return nil
}

// useLegacy makes "iptables" the legacy variant: the kernel lacks a module that
// the other one needs.
func useLegacy() error {
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, tool := range []string{"", "-save", "-restore"} {
			for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin"} {
				legacy := filepath.Join(dir, family+"-legacy"+tool)
				if _, err := os.Stat(legacy); err != nil {
					continue
				}
				if err := os.Symlink(legacy, filepath.Join(programs, family+tool)); err != nil {
					return fmt.Errorf("choosing iptables' legacy variant: %w", err)
				}
				break
			}
		}
	}
	return nil
}

// openSerial opens the line to Run, which passes on what it gets as it is.
func openSerial() (*os.File, error) {
	if err := unix.Mknod(serialPath, unix.S_IFCHR|0o600, int(unix.Mkdev(serialMajor, serialMinor))); err != nil { //nolint:gosec // small
		return nil, fmt.Errorf("making the device of the output: %w", err)
	}
	serial, err := os.OpenFile(serialPath, os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the device of the output: %w", err)
	}
	settings, err := unix.IoctlGetTermios(int(serial.Fd()), unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("setting up the device of the output: %w", err)
	}
	settings.Oflag &^= unix.OPOST
	if err := unix.IoctlSetTermios(int(serial.Fd()), unix.TCSETS, settings); err != nil {
		return nil, fmt.Errorf("setting up the device of the output: %w", err)
	}
	return serial, nil
}

// drain waits until everything has been passed on.
func drain(serial *os.File) error {
	if err := unix.IoctlSetInt(int(serial.Fd()), unix.TCSBRK, 1); err != nil {
		return fmt.Errorf("waiting for the output: %w", err)
	}
	return nil
}

// variable is the value of a variable in an environment.
func variable(env []string, name string) string {
	value := ""
	for _, entry := range env {
		if rest, found := strings.CutPrefix(entry, name+"="); found {
			value = rest
		}
	}
	return value
}

// lastOfEach leaves the last entry of each variable.
func lastOfEach(env []string) []string {
	at := map[string]int{}
	var out []string
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if i, found := at[name]; found {
			out[i] = entry
			continue
		}
		at[name] = len(out)
		out = append(out, entry)
	}
	return out
}
