package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

// patience is how long User-mode Linux may take for everything.
const patience = 3 * time.Hour

func main() {
	uml.Boot()
	if len(os.Args) > 2 && os.Args[1] == keepLimits {
		fmt.Fprintln(os.Stderr, "bench:", becomeWithLimits(os.Args[2:]))
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// If the reader of our output stops reading, go on and clean up.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	err := run(ctx, os.Args[1:])
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case interrupted:
		fmt.Fprintln(os.Stderr, "\nbench: interrupted; what it had started is removed")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// inUserModeLinux runs this program with the same flags in a kernel that has IPVS.
func inUserModeLinux(ctx context.Context, args []string) (err error) {
	directory, err := os.MkdirTemp("", "nodeproxy-bench-")
	if err != nil {
		return fmt.Errorf("making a directory for programs: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	if err := cluster.Build(ctx, os.Stderr, directory, binaries.KubeProxy); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "This machine's kernel has no IPVS: both proxies run in User-mode Linux, on one processor,\nwhere everything takes longer: compare them with each other alone.")
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	status, err := ipvskernel.Run(ctx, directory, os.Stdout, args...)
	if err == nil && status != 0 {
		err = errors.New("it has failed in User-mode Linux")
	}
	return err
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.mode == v1alpha1.ModeIPVS && !ipvskernel.Here() {
		return inUserModeLinux(ctx, args)
	}
	for _, path := range []*string{&o.bin, &o.config, &o.out} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	progress := newProgress(os.Stderr)
	progress.line("measuring %s; expect about %d minutes on a quiet machine with 2 cores", o.what(), o.minutes())
	results := newReport(o)
	for _, size := range o.sizes {
		var measured []result
		measured, err = measureSize(ctx, o, size, progress)
		results.Results = append(results.Results, measured...)
		if err != nil {
			break
		}
	}
	if len(results.Results) == 0 {
		return err
	}
	// What is measured is reported even if the rest could not be.
	results.end()
	results.print(os.Stdout)
	if writeErr := results.write(o.out); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	fmt.Fprintf(os.Stdout, "\n%s\n", o.out)
	if err == nil && o.earlier != nil {
		err = results.against(o)
	}
	return err
}

// progress prints how far it is, with the time since the start.
type progress struct {
	out   *os.File
	start time.Time
}

func newProgress(out *os.File) *progress { return &progress{out: out, start: time.Now()} }

func (p *progress) line(format string, args ...any) {
	fmt.Fprintf(p.out, "bench %5s  %s\n", time.Since(p.start).Round(time.Second), fmt.Sprintf(format, args...))
}
