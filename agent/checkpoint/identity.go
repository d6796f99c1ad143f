package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Identity shows whether rules may still be in the kernel: they end with the boot and with the
// network namespace.
type Identity struct {
	// BootID is the kernel's random id of the boot. Empty: unknown.
	BootID string `json:"bootID"`
	// Netns is the cookie of the network namespace, unique until the next boot. 0: the kernel
	// (before Linux 5.14) has none.
	Netns uint64 `json:"netns"`
}

// Same reports whether both are one network namespace in one boot.
func (i Identity) Same(o Identity) bool {
	return i.BootID != "" && i.BootID == o.BootID && i.Netns == o.Netns
}

// Here is the identity of the calling process. Proc is the proc file system. With an error, what
// the result lacks is unknown.
func Here(proc string) (Identity, error) {
	var id Identity
	text, err := os.ReadFile(filepath.Join(proc, "sys/kernel/random/boot_id"))
	if err != nil {
		return id, fmt.Errorf("reading the id of this boot: %w", err)
	}
	id.BootID = strings.TrimSpace(string(text))
	id.Netns, err = netnsCookie()
	return id, err
}

func netnsCookie() (uint64, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("opening a socket to identify the network namespace: %w", err)
	}
	defer func() { _ = unix.Close(socket) }() // nothing was written to it
	cookie, err := unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("identifying the network namespace: %w", err)
	}
	return cookie, nil
}
