// Command binaries builds etcd, kube-apiserver, kube-controller-manager and
// kubectl where they are missing and prints the folder that holds them, in the
// form that KUBEBUILDER_ASSETS takes. Progress goes to standard error.
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
	kubeProxy := flag.Bool("kube-proxy", false, "build kube-proxy too, the peer of comparisons")
	realNodes := flag.Bool("real-nodes", false, "build what clusters with real kubelets need, too: kubelet, kube-scheduler and CoreDNS")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

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
