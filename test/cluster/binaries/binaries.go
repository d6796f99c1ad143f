package binaries

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// Program is one of the programs that this package provides.
type Program string

// The programs that can be had.
const (
	Etcd              Program = "etcd"
	APIServer         Program = "kube-apiserver"
	ControllerManager Program = "kube-controller-manager"
	Kubectl           Program = "kubectl"
	KubeProxy         Program = "kube-proxy"
	Scheduler         Program = "kube-scheduler"
	Kubelet           Program = "kubelet"
	CoreDNS           Program = "coredns"
)

// ControlPlane lists what a local cluster and envtest need.
func ControlPlane() []Program {
	return []Program{Etcd, APIServer, ControllerManager, Kubectl}
}

// RealNodes lists what a cluster with real kubelets needs besides ControlPlane.
func RealNodes() []Program {
	return []Program{Scheduler, Kubelet, CoreDNS}
}

// KubernetesVariable names the environment variable that selects the Kubernetes to
// provide. Empty: that of hack/kubernetes; "oldest": that of hack/kubernetes-oldest,
// the oldest that nodeproxy promises to run on, of which there is only a control plane.
const KubernetesVariable = "NODEPROXY_KUBERNETES"

// WithUserspace is, for EnsureOf, the Kubernetes of hack/kubernetes-userspace: the last one whose
// kube-proxy has the mode userspace. There is no other program of it.
const WithUserspace = "userspace"

const productModule = "module github.com/nodeproxy-io/nodeproxy\n"

// tool is a nested module under hack/ that pins programs and their version.
type tool struct {
	directory string             // under the repository's root
	module    string             // whose version names the result
	packages  map[Program]string // import path of each program
	release   func() release     // nil: there are only sources
	minutes   int                // of a build with empty caches, measured on two cores
}

// tools returns those of a Kubernetes, as KubernetesVariable names it.
func tools(which string) []tool {
	const kube = "k8s.io/kubernetes"
	kubernetes := "hack/kubernetes"
	if which != "" {
		kubernetes += "-" + which
	}
	return []tool{
		{
			directory: "hack/etcd",
			module:    "go.etcd.io/etcd/server/v3",
			packages:  map[Program]string{Etcd: "go.etcd.io/etcd/server/v3"},
			release:   etcdRelease,
			minutes:   2,
		},
		{
			directory: kubernetes,
			module:    kube,
			packages: map[Program]string{
				APIServer:         kube + "/cmd/kube-apiserver",
				ControllerManager: kube + "/cmd/kube-controller-manager",
				Kubectl:           kube + "/cmd/kubectl",
				KubeProxy:         kube + "/cmd/kube-proxy",
				Scheduler:         kube + "/cmd/kube-scheduler",
				Kubelet:           kube + "/cmd/kubelet",
			},
			release: kubernetesRelease,
			minutes: 14,
		},
		{
			directory: "hack/coredns",
			module:    "github.com/coredns/coredns",
			packages:  map[Program]string{CoreDNS: "github.com/coredns/coredns"},
			minutes:   2,
		},
	}
}

// of returns those of programs that t provides.
func (t tool) of(programs []Program) []Program {
	return slices.DeleteFunc(slices.Clone(programs), func(p Program) bool { return t.packages[p] == "" })
}

// Ensure makes sure that the given programs are there and returns the directory
// that holds them. When they are already there it returns at once; otherwise
// it downloads or builds what is missing and reports progress to out. Several
// processes may call it at the same time: one works, the others wait for it.
func Ensure(ctx context.Context, out io.Writer, programs ...Program) (string, error) {
	return EnsureOf(ctx, out, os.Getenv(KubernetesVariable), programs...)
}

// EnsureOf is Ensure with a Kubernetes that KubernetesVariable need not select.
func EnsureOf(ctx context.Context, out io.Writer, which string, programs ...Program) (string, error) {
	root, err := findRoot()
	if err != nil {
		return "", err
	}
	tools := tools(which)
	dir, versions, err := directory(root, tools)
	if err != nil {
		return "", err
	}
	if len(missing(dir, programs)) == 0 {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("creating the directory for built programs: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(dir, ".lock"), out)
	if err != nil {
		return "", err
	}
	defer unlock()

	d := newDownloader(root, dir, out)
	for _, t := range tools {
		if err := d.download(ctx, t, versions[t.module], t.of(missing(dir, programs))); err != nil {
			return "", err
		}
	}
	b := builder{root: root, dir: dir, tools: tools, versions: versions, out: out}
	if err := b.buildAll(ctx, missing(dir, programs)); err != nil {
		return "", err
	}
	if left := missing(dir, programs); len(left) > 0 {
		return "", fmt.Errorf("no module under hack/ builds %v", left)
	}
	return dir, nil
}

// Directory returns the directory where Ensure puts programs, without building any.
func Directory() (string, error) {
	root, err := findRoot()
	if err != nil {
		return "", err
	}
	dir, _, err := directory(root, tools(os.Getenv(KubernetesVariable)))
	return dir, err
}

// directory names the place of the programs that root's tool modules pin. The
// hash covers all that decides the result, so another pin is another directory.
func directory(root string, tools []tool) (dir string, versions map[string]string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", nil, fmt.Errorf("no cache directory for built programs, set HOME or XDG_CACHE_HOME: %w", err)
	}
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.GOOS, runtime.GOARCH, buildRevision)
	versions = map[string]string{}
	for _, t := range tools {
		for _, name := range []string{"go.mod", "go.sum"} {
			text, err := os.ReadFile(filepath.Join(root, t.directory, name))
			if err != nil {
				return "", nil, fmt.Errorf("reading the pinned versions: %w", err)
			}
			hash.Write(text)
			if name == "go.mod" {
				versions[t.module] = requiredVersion(string(text), t.module)
			}
		}
		if versions[t.module] == "" {
			return "", nil, fmt.Errorf("%s/go.mod does not require %s", t.directory, t.module)
		}
	}
	name := fmt.Sprintf("kubernetes-%s-%s", versions["k8s.io/kubernetes"], hex.EncodeToString(hash.Sum(nil))[:10])
	return filepath.Join(cache, "nodeproxy", "bin", name), versions, nil
}

// requiredVersion finds the version of module in the text of a go.mod.
func requiredVersion(gomod, module string) string {
	re := regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(module) + `\s+(v\S+)`)
	if m := re.FindStringSubmatch(gomod); m != nil {
		return m[1]
	}
	return ""
}

// missing returns those of programs that dir does not hold yet. They appear
// there by a rename, so one that is there is complete.
func missing(dir string, programs []Program) []Program {
	var left []Program
	for _, p := range programs {
		if _, err := os.Stat(filepath.Join(dir, string(p))); err != nil {
			left = append(left, p)
		}
	}
	return left
}

// findRoot looks for the repository's root from the working directory upwards.
func findRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("finding the repository: %w", err)
		}
		if strings.HasPrefix(string(text), productModule) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not inside a clone of nodeproxy: run this from the clone, the programs to build are pinned in its hack directory", start)
		}
	}
}
