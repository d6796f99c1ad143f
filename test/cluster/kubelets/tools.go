package kubelets

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// toolsRoot is where hack/install-packages.sh unpacks the packages of containerd,
// runc and the CNI plugins.
const toolsRoot = "/usr/local/lib/nodeproxy-test"

// tools are the programs of the container runtime.
type tools struct {
	containerd, ctr, runc string
	bin                   string // directory with containerd's own programs
	cni                   string // directory with the CNI plugins
}

// findTools returns the tools, or what to do where they are missing.
func findTools() (tools, error) {
	bin := filepath.Join(toolsRoot, "usr/bin")
	t := tools{
		containerd: filepath.Join(bin, "containerd"), ctr: filepath.Join(bin, "ctr"), bin: bin,
		runc: filepath.Join(toolsRoot, "usr/sbin/runc"), cni: filepath.Join(toolsRoot, "usr/lib/cni"),
	}
	for _, path := range []string{t.containerd, t.ctr, t.runc, filepath.Join(t.cni, "ptp"), filepath.Join(t.cni, "host-local")} {
		if _, err := os.Stat(path); err != nil {
			return t, fmt.Errorf("%w with real nodes: %s not found; get it with: hack/install-packages.sh real-nodes", cluster.ErrNotPossible, path)
		}
	}
	return t, nil
}
