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
)

// options are the command line.
type options struct {
	nodes, services int
	bin, config     string
	sizes           []int    // numbers of endpoints of the probes
	only            []string // names of scenarios; none: all
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case interrupted:
		fmt.Fprintln(os.Stderr, "\nscale: interrupted; what it had started is removed")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o := options{sizes: []int{1, 10, 100, 1000, 5000, 20_000}}
	flags := flag.NewFlagSet("scale", flag.ContinueOnError)
	flags.IntVar(&o.nodes, "nodes", 5000, "number of nodes, of which a tenth watch")
	flags.IntVar(&o.services, "services", 10_000, "number of Services, with 10 endpoints each on average")
	flags.StringVar(&o.bin, "bin", "bin", "`directory` with nodeproxy-controller")
	flags.StringVar(&o.config, "config", "config", "`directory` with the CRDs and roles")
	flags.Func("only", "`name` of a scenario to measure; repeat it for several; default: all", func(name string) error {
		if name != "" {
			o.only = append(o.only, name)
		}
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.nodes < 100 || o.services < 100 {
		return errors.New("at least 100 nodes and 100 Services are needed, and no other arguments are allowed")
	}
	for _, path := range []*string{&o.bin, &o.config} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = absolute
	}
	start := time.Now()
	results, err := measure(ctx, o, func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "scale %5s  %s\n", time.Since(start).Round(time.Second), fmt.Sprintf(format, args...))
	})
	if results != nil {
		results.print(os.Stdout)
	}
	return err
}
