package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

func main() {
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "how to reach the cluster")
	out := flag.String("out", "", "the directory to write")
	flag.Parse()
	if err := run(*kubeconfig, *out); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(kubeconfig, out string) error {
	if out == "" || kubeconfig == "" {
		return errors.New("give -kubeconfig and -out")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	return recorded.Record(context.Background(), config, out, time.Now())
}
