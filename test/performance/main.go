// The performance program measures nodeproxy in a local cluster: from the
// write of an EndpointSlice to the rule in a node's kernel, and the memory of
// the agent.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

type options struct {
	bin       string
	services  int
	endpoints int
	changes   int
	median    time.Duration
	memory    int
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "folder with nodeproxy-controller and nodeproxy-agent")
	flag.IntVar(&o.services, "services", 1000, "number of Services")
	flag.IntVar(&o.endpoints, "endpoints", 10, "endpoints of each Service")
	flag.IntVar(&o.changes, "changes", 60, "endpoint changes to measure")
	flag.DurationVar(&o.median, "median", 150*time.Millisecond, "fail if the median from write to rule is above this")
	flag.IntVar(&o.memory, "memory", 60, "fail if the agent's resident memory is above this, in MB")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "performance:", err)
		stop()
		os.Exit(1) //nolint:gocritic // the deferred stop has been called
	}
}

func run(ctx context.Context, o options) (err error) {
	scheme, err := install.Scheme()
	if err != nil {
		return err
	}
	c, err := cluster.Start(ctx, cluster.Options{Nodes: 1, Scheme: scheme, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return err
	}
	m := &measurement{options: o, node: c.Node(0), client: c.Client(),
		nodeproxy: &install.Nodeproxy{Cluster: c, Bin: bin, Config: "config"}}
	if err := m.load(ctx); err != nil {
		return err
	}
	latencies, err := m.changeEndpoints(ctx)
	if err != nil {
		return err
	}
	return m.report(latencies)
}

// report prints the figures and says which of them are too high.
func (m *measurement) report(latencies []time.Duration) error {
	slices.Sort(latencies)
	at := func(q float64) time.Duration {
		return latencies[int(q*float64(len(latencies)-1))].Round(time.Millisecond)
	}
	memory, err := residentMB(m.agent.PID())
	if err != nil {
		return err
	}
	controller, err := residentMB(m.controller.PID())
	if err != nil {
		return err
	}
	fmt.Printf("Services x endpoints             %d x %d, iptables %s\n", m.services, m.endpoints, m.variant)
	fmt.Printf("all rules in the kernel after    %s (objects created in %s)\n", m.loaded.Round(time.Millisecond), m.created.Round(time.Millisecond))
	fmt.Printf("EndpointSlice write to rule      median %s, p90 %s, p99 %s, max %s, %d changes\n", at(.5), at(.9), at(.99), at(1), len(latencies))
	fmt.Printf("resident memory of the agent     %d MB\n", memory)
	fmt.Printf("resident memory of the controller %d MB\n", controller)
	var failed []string
	if at(.5) > m.median {
		failed = append(failed, fmt.Sprintf("the median is above %s", m.median))
	}
	if memory > m.memory {
		failed = append(failed, fmt.Sprintf("the agent's memory is above %d MB", m.memory))
	}
	if len(failed) > 0 {
		return errors.New(strings.Join(failed, "; "))
	}
	return nil
}

func residentMB(pid int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		var kB int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kB); err == nil {
			return kB / 1000, nil
		}
	}
	return 0, fmt.Errorf("no VmRSS in /proc/%d/status", pid)
}
