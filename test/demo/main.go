package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

func main() {
	uml.Boot()
	mode := flag.String("mode", string(v1alpha1.ModeIPTables), "mode of the nodes: IPTables, IPVS, NFTables or Userspace")
	keep := flag.Bool("keep", false, "leave the cluster running at the end and print how to use it")
	clean := flag.Bool("clean", false, "remove clusters that were left running, and do nothing else")
	bin := flag.String("bin", "bin", "directory with nodeproxy-controller and nodeproxy-agent")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// If the reader of our output stops reading (make demo | head), go on and
	// clean up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	err := start(ctx, *mode, *bin, *keep, *clean)
	stop()
	switch {
	case errors.Is(err, errInterrupted):
		fmt.Fprintln(os.Stderr, "\ndemo: interrupted; what it had started is removed")
		os.Exit(130)
	case errors.Is(err, errFailed):
		os.Exit(1) // the report shows which checks failed
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// errInterrupted means that the user has ended the demo.
var errInterrupted = errors.New("interrupted")

// errFailed means that some checks failed, which the report shows already.
var errFailed = errors.New("some checks failed")

// start does what the flags ask for.
func start(ctx context.Context, modeName, bin string, keep, clean bool) error {
	if clean {
		return cluster.Clean(ctx, os.Stdout)
	}
	mode, err := modeOf(modeName)
	if err != nil {
		return err
	}
	if bin, err = findPrograms(bin); err != nil {
		return err
	}
	if err := prepare(ctx, os.Stdout, mode); err != nil {
		return err
	}
	if mode == v1alpha1.ModeIPVS && !ipvskernel.Here() {
		return inUserModeLinux(ctx, keep)
	}
	return run(ctx, mode, bin, keep)
}

// modeOf returns the mode with a name, in whatever case.
func modeOf(name string) (v1alpha1.ProxyMode, error) {
	for _, mode := range []v1alpha1.ProxyMode{v1alpha1.ModeIPTables, v1alpha1.ModeIPVS, v1alpha1.ModeNFTables, v1alpha1.ModeUserspace} {
		if strings.EqualFold(name, string(mode)) {
			return mode, nil
		}
	}
	return "", fmt.Errorf("there is no mode %q: choose %s, %s, %s or %s", name, v1alpha1.ModeIPTables, v1alpha1.ModeIPVS, v1alpha1.ModeNFTables, v1alpha1.ModeUserspace)
}

func run(ctx context.Context, mode v1alpha1.ProxyMode, bin string, keep bool) error {
	rulesBefore, err := rootRules(ctx)
	if err != nil {
		return err
	}
	if _, err := binaries.Ensure(ctx, os.Stdout, binaries.ControlPlane()...); err != nil {
		return err
	}

	r := newReport(os.Stdout, func() bool { return ctx.Err() != nil })
	d := &demo{report: r, mode: mode, bin: bin, keep: keep}
	err = d.steps(ctx)
	if ctx.Err() != nil {
		if err := d.stop(); err != nil {
			return err
		}
		return errInterrupted
	}
	if r.failed > 0 && !keep {
		d.saveLogs()
	}
	if keep && d.cluster != nil {
		err = errors.Join(err, d.leave())
	} else {
		d.cleanUp(ctx, rulesBefore)
	}
	if err != nil && !errors.Is(err, errStopped) {
		r.failed++
		fmt.Fprintf(os.Stdout, "\n%v\n", err)
	}
	fmt.Fprintf(os.Stdout, "\ndemo: %d checks passed, %d failed\n", r.passed, r.failed)
	if r.failed > 0 {
		return errFailed
	}
	return nil
}

// findPrograms returns the absolute path of the directory with our two programs.
func findPrograms(bin string) (string, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return "", err
	}
	for _, name := range []string{"nodeproxy-controller", "nodeproxy-agent"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return "", fmt.Errorf("%s is missing in %s: build it with `make build`, or run the demo with `make demo`", name, bin)
		}
	}
	return bin, nil
}
