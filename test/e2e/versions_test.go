package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// suite is what the tests of this package share. TestMain makes it.
var suite struct {
	ctx  context.Context // ends with SIGINT or SIGTERM
	root string          // of this repository
	// places are taken by the clusters that run at a time, as many as -parallel allows.
	places chan struct{}
	// Both versions are built at most once.
	first, next func() (version, error)
}

func TestMain(m *testing.M) {
	status, err := runSuite(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func runSuite(m *testing.M) (status int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "nodeproxy-e2e-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	suite.ctx, suite.root = ctx, root
	// A test that waits for a place must not keep another from running.
	flag.Parse()
	suite.places = make(chan struct{}, flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int))
	if err := flag.Set("test.parallel", "1000"); err != nil {
		return 1, err
	}
	suite.first = sync.OnceValues(func() (version, error) { return build(ctx, root, filepath.Join(dir, first), first) })
	suite.next = sync.OnceValues(func() (version, error) { return build(ctx, root, filepath.Join(dir, next), next) })
	return m.Run(), nil
}

// The versions that are installed, and to which is upgraded.
const (
	first = "e2e-1"
	next  = "e2e-2"
)

// version is nodeproxy as make writes it: images and manifest.
type version struct {
	name string
	dir  string // with images/*.tar and install.yaml
}

// image is the name of an image of the version.
func (v version) image(program string) string { return "nodeproxy.io/" + program + ":" + v.name }

func (v version) manifest() string { return filepath.Join(v.dir, "install.yaml") }

func (v version) images() string { return filepath.Join(v.dir, "images") }

// archives are those of both images, the agent's first.
func (v version) archives() []string {
	return []string{filepath.Join(v.images(), "nodeproxy-agent.tar"), filepath.Join(v.images(), "nodeproxy-controller.tar")}
}

// build makes a version into a directory, as `make images install-manifest` does.
func build(ctx context.Context, root, dir, name string) (version, error) {
	v := version{name: name, dir: dir}
	command := exec.CommandContext(ctx, filepath.Join(root, "hack", "images.sh"))
	command.Env = append(os.Environ(), "VERSION="+name, "OUT="+v.images(), "IMAGE_REGISTRY=")
	if out, err := command.CombinedOutput(); err != nil {
		return v, fmt.Errorf("making the images: %w: %s", err, out)
	}
	return v, v.writeManifest(ctx, root, cluster.APIServerURL)
}

// writeManifest writes install.yaml as `make install-manifest` does.
func (v version) writeManifest(ctx context.Context, root, apiServers string) error {
	command := exec.CommandContext(ctx, filepath.Join(root, "hack", "install-manifest.sh"))
	command.Env = append(os.Environ(), "VERSION="+v.name, "MANIFEST_OUTPUT="+v.manifest(), "API_SERVERS="+apiServers, "IMAGE_REGISTRY=", "COMPONENTS=")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("making install.yaml: %w: %s", err, out)
	}
	return nil
}
