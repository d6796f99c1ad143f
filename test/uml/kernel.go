package uml

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	// program is the kernel, installedModules the directory of its modules.
	program          = "linux.uml"
	installedModules = "/usr/lib/uml/modules"
	// pinned is the version that hack/pinned.lock names.
	pinned = "7.2.12"
)

// kernel is a kernel and how to start it.
type kernel struct {
	// program and modules are paths.
	program, modules string
	args             []string
}

// findKernel returns the kernel that hack/pinned.sh builds, or the installed one if it was not built. The
// former need not trace its processes, which takes a quarter of the time. On processors with AMX only the
// latter is known to start.
func findKernel() (kernel, error) {
	if cache, err := os.UserCacheDir(); err == nil && !hasAMX() {
		directory := filepath.Join(cache, "nodeproxy", program, pinned)
		path := filepath.Join(directory, program)
		if _, err := os.Stat(path); err == nil {
			return kernel{program: path, modules: filepath.Join(directory, "lib/modules"), args: []string{"seccomp=on"}}, nil
		}
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return kernel{}, errors.New("linux.uml not found: apt-get install user-mode-linux")
	}
	if _, err := os.Stat(installedModules); err != nil {
		return kernel{}, fmt.Errorf("modules of User-mode Linux not found: apt-get install user-mode-linux: %w", err)
	}
	return kernel{program: path, modules: installedModules}, nil
}
