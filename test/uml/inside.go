package uml

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Inside reports whether this is the first process of a kernel that Run has
// booted.
func Inside() bool { return os.Getpid() == 1 && os.Getenv(folderVariable) != "" }

// Report hands a result over to the caller of Run.
func Report(result []byte) error {
	if !Inside() {
		return errors.New("this is not a kernel that this package has booted")
	}
	if err := os.WriteFile(filepath.Join(os.Getenv(folderVariable), resultFile), result, 0o600); err != nil {
		return fmt.Errorf("handing a result over: %w", err)
	}
	return nil
}

// Main runs the tests; call it from TestMain. As the first process of a kernel it
// makes what programs expect of a machine, and powers off in the end.
func Main(m *testing.M) {
	if !Inside() {
		os.Exit(m.Run())
	}
	folder := os.Getenv(folderVariable)
	status := 1
	if err := setUp(folder); err != nil {
		fmt.Println("setting up the machine:", err)
	} else {
		status = m.Run()
	}
	err := os.WriteFile(filepath.Join(folder, statusFile), []byte(strconv.Itoa(status)), 0o600)
	if err != nil {
		fmt.Println("telling the exit status:", err)
	}
	unix.Sync()
	fmt.Println("powering off:", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

// setUp makes a machine of a kernel: file systems, the loopback interface, and
// the loader of modules.
func setUp(folder string) error {
	output, err := os.Create(filepath.Join(folder, outputFile))
	if err != nil {
		return fmt.Errorf("keeping the output: %w", err)
	}
	for _, fd := range []int{1, 2} {
		if err := unix.Dup3(int(output.Fd()), fd, 0); err != nil {
			return fmt.Errorf("keeping the output: %w", err)
		}
	}
	for _, mount := range [][2]string{{"/proc", "proc"}, {"/sys", "sysfs"}, {"/run", "tmpfs"}} {
		if err := unix.Mount(mount[1], mount[0], mount[1], 0, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", mount[0], err)
		}
	}
	temp := "/run/tmp"
	if err := os.Mkdir(temp, 0o700); err != nil {
		return fmt.Errorf("making the folder of temporary files: %w", err)
	}
	for name, value := range map[string]string{"TMPDIR": temp, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"} {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	if err := os.WriteFile("/proc/sys/kernel/modprobe", []byte(filepath.Join(folder, loaderFile)), 0); err != nil {
		return fmt.Errorf("setting the loader of modules: %w", err)
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
