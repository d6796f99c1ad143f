package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "binaries:", err)
		os.Exit(1)
	}
}

func run() error {
	kubeProxy := flag.Bool("kube-proxy", false, "provide kube-proxy too, the peer of comparisons")
	realNodes := flag.Bool("real-nodes", false, "provide what clusters with real kubelets need, too: kubelet, kube-scheduler and CoreDNS")
	pin := flag.Bool("pin", false, "only write the publishers' checksums of the versions in go.mod to hack/*/SHA*SUMS, which needs internet access")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	if *pin {
		return binaries.Pin(ctx, os.Stderr)
	}
	programs := binaries.ControlPlane()
	if *kubeProxy {
		programs = append(programs, binaries.KubeProxy)
	}
	if *realNodes {
		programs = append(programs, binaries.RealNodes()...)
	}
	dir, err := binaries.Ensure(ctx, os.Stderr, programs...)
	if err != nil {
		return err
	}
	fmt.Println(dir)
	return nil
}
