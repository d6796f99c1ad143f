package kubelets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
)

// Where things are on a node.
const (
	runtimeSocket   = "/run/containerd/containerd.sock"
	cniDirectory    = "/run/cni"
	configDirectory = "/run/nodeproxy-node"
)

// dnsAddress is that of the Service kube-dns.
const dnsAddress = "10.96.0.10"

// writeConfig writes a file below /run of the node and returns its path there.
func (n *Node) writeConfig(directory, name, text string) (string, error) {
	outside := filepath.Join(n.Disk(), directory)
	if err := os.MkdirAll(outside, 0o755); err != nil {
		return "", fmt.Errorf("writing %s of %s: %w", name, n.Name(), err)
	}
	// By a rename, because the runtime reads what is in the directory that it watches.
	temp := filepath.Join(outside, "."+name)
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("writing %s of %s: %w", name, n.Name(), err)
	}
	return filepath.Join(directory, name), os.Rename(temp, filepath.Join(outside, name))
}

// startContainerd starts containerd and waits until it answers.
func (n *Node) startContainerd(ctx context.Context) error {
	config, err := n.writeConfig(configDirectory, "containerd.toml", n.containerdConfig())
	if err != nil {
		return err
	}
	// It looks for its own programs in PATH.
	path := "PATH=" + n.cluster.tools.bin + ":" + os.Getenv("PATH")
	process, err := n.Machine.Start(cluster.Command{
		Path: n.cluster.tools.containerd, Args: []string{"--config", config}, Env: []string{path},
	})
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.containerd = process
	n.mu.Unlock()
	for {
		_, err := n.Exec(ctx, nil, n.cluster.tools.ctr, "version")
		if err == nil {
			return nil
		}
		select {
		case <-process.Done():
			return fmt.Errorf("containerd of %s has ended; %s", n.Name(), process.Tail())
		case <-ctx.Done():
			return fmt.Errorf("containerd of %s does not answer: %w; %s", n.Name(), err, process.Tail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (n *Node) containerdConfig() string {
	return `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "` + runtimeSocket + `"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + pauseImage + `"
disable_apparmor = true
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "` + n.cluster.tools.cni + `"
conf_dir = "` + cniDirectory + `"

[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "` + n.cluster.tools.runc + `"
SystemdCgroup = false
`
}

// StartKubelet starts the node's kubelet. Start has done it; it is of use again
// after Kubelet().Stop or Kill.
func (n *Node) StartKubelet() error {
	name := "system:node:" + n.Name()
	kubeconfig, err := n.cluster.KubeconfigFor("kubelet-"+n.Name(), name, "system:nodes")
	if err != nil {
		return err
	}
	config, err := n.writeConfig(configDirectory, "kubelet.yaml", n.kubeletConfig())
	if err != nil {
		return err
	}
	args := []string{
		"--config=" + config,
		"--kubeconfig=" + kubeconfig,
		"--hostname-override=" + n.Name(),
		"--node-ip=" + n.Address().String() + "," + n.Address6().String(),
	}
	if zones := n.cluster.options.Zones; len(zones) > 0 {
		args = append(args, "--node-labels="+corev1.LabelTopologyZone+"="+zones[(n.number-1)%len(zones)])
	}
	if taints := n.cluster.options.Taints; len(taints) > 0 {
		args = append(args, "--register-with-taints="+taintList(taints))
	}
	process, err := n.Machine.Start(cluster.Command{
		Path: filepath.Join(cluster.ProgramsOnMachine, string(binaries.Kubelet)), Args: args,
	})
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kubelet = process
	return nil
}

// taintList writes taints as the kubelet's flag takes them.
func taintList(taints []corev1.Taint) string {
	words := make([]string, len(taints))
	for i, taint := range taints {
		words[i] = taint.ToString()
	}
	return strings.Join(words, ",")
}

// kubeletConfig is that of a node on a machine that it shares with others: it
// neither limits nor evicts by what is used of the whole machine. A changed
// ConfigMap reaches pods within 10 s, for which others take a minute.
func (n *Node) kubeletConfig() string {
	return `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://` + runtimeSocket + `
authentication:
  anonymous:
    enabled: false
  webhook:
    enabled: true
  x509:
    clientCAFile: ` + n.cluster.CAFile() + `
authorization:
  mode: Webhook
clusterDNS: [` + dnsAddress + `]
clusterDomain: cluster.local
resolvConf: ""
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
oomScoreAdj: 0
syncFrequency: 10s
evictionHard:
  memory.available: "0%"
  nodefs.available: "0%"
  nodefs.inodesFree: "0%"
  imagefs.available: "0%"
  imagefs.inodesFree: "0%"
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
logging:
  verbosity: 1
`
}

// writeCNI configures how containerd joins pods to the network, with which the node
// gets ready.
func (n *Node) writeCNI() error {
	ranges := n.PodRanges()
	if len(ranges) != 2 {
		return errors.New("a node of a dual-stack cluster has two ranges of pods")
	}
	_, err := n.writeConfig(cniDirectory, "10-pods.conflist", fmt.Sprintf(`{
  "cniVersion": "0.4.0",
  "name": "pods",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": %q}], [{"subnet": %q}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, ranges[0], ranges[1]))
	return err
}
