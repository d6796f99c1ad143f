// Command bench compares nodeproxy with kube-proxy in one run: the same objects and API
// server, each proxy alone on its own node, one after the other. `make bench` builds what
// it needs and runs it. With -mode IPVS both run in that mode; if this machine's kernel
// has no IPVS, it runs itself in User-mode Linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
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

// defaultChurn is how long endpoints are changed unless the command line says so.
const defaultChurn = time.Minute

// options are the command line.
type options struct {
	mode      v1alpha1.ProxyMode
	bin       string
	config    string
	out       string
	sizes     []int // numbers of Services
	variants  []variant
	proxies   []string
	endpoints int // of each Service
	moves     int // endpoints moved to see when the first connection arrives
	churn     time.Duration
	logs      string
	// earlier are ratios to compare with; nil: none.
	earlier *report
}

func main() {
	uml.Boot()
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

func parse(args []string) (options, error) {
	var (
		o                       options
		sizes, variants, proxys string
		mode, against           string
	)
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&mode, "mode", string(v1alpha1.ModeIPTables), "the `mode` of both proxies: IPTables or IPVS")
	flags.StringVar(&o.bin, "bin", "bin", "`directory` with nodeproxy-controller and nodeproxy-agent")
	flags.StringVar(&o.config, "config", "config", "`directory` with the CRDs and roles")
	flags.StringVar(&o.out, "out", filepath.Join("dist", "bench.json"), "`file` for the results as JSON")
	flags.StringVar(&sizes, "sizes", "1000 5000", "`numbers` of Services")
	flags.StringVar(&variants, "variants", "nf_tables legacy", "`variants` of iptables")
	flags.StringVar(&proxys, "proxies", kubeProxyName+" "+nodeproxyName, "the `proxies` to measure; both, to compare them")
	flags.IntVar(&o.endpoints, "endpoints", 10, "endpoints of each Service")
	flags.IntVar(&o.moves, "moves", 25, "how often an endpoint is moved to see when the first connection arrives")
	flags.StringVar(&against, "against", "", "`file` with the ratios of an earlier run, of which none may be clearly worse now; empty: nothing is compared")
	flags.DurationVar(&o.churn, "churn", defaultChurn, "how long 10 endpoints a second are changed")
	flags.StringVar(&o.logs, "logs", "", "`directory` to which the proxies' logs are copied; empty: they go away with the cluster")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if err := o.setMode(mode); err != nil {
		return o, err
	}
	if against != "" {
		var err error
		if o.earlier, err = readRatios(against); err != nil {
			return o, err
		}
	}
	for word := range strings.FieldsSeq(sizes) {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > maxServices {
			return o, fmt.Errorf("-sizes: %q is not a number from 1 to %d", word, maxServices)
		}
		o.sizes = append(o.sizes, n)
	}
	if o.mode == v1alpha1.ModeIPVS {
		// A handful of rules, whatever there is: the variant makes no difference.
		variants, _, _ = strings.Cut(strings.TrimSpace(variants), " ")
		if uml.Inside() {
			variants = string(legacy) // the only one there
		}
	}
	for word := range strings.FieldsSeq(variants) {
		v := variant(word)
		if v != nfTables && v != legacy {
			return o, fmt.Errorf("-variants: %q is neither %s nor %s", word, nfTables, legacy)
		}
		o.variants = append(o.variants, v)
	}
	for word := range strings.FieldsSeq(proxys) {
		if word != kubeProxyName && word != nodeproxyName {
			return o, fmt.Errorf("-proxies: %q is neither %s nor %s", word, kubeProxyName, nodeproxyName)
		}
		o.proxies = append(o.proxies, word)
	}
	if len(o.sizes) == 0 || len(o.variants) == 0 || len(o.proxies) == 0 {
		return o, errors.New("nothing to measure: give at least one size, one variant and one proxy")
	}
	if o.endpoints < 1 || o.endpoints > maxEndpoints || o.moves < 2 || o.churn < time.Second {
		return o, fmt.Errorf("-endpoints must be 1 to %d, -moves at least 2, -churn at least 1s", maxEndpoints)
	}
	return o, nil
}

func (o *options) setMode(name string) error {
	for _, mode := range []v1alpha1.ProxyMode{v1alpha1.ModeIPTables, v1alpha1.ModeIPVS} {
		if strings.EqualFold(name, string(mode)) {
			o.mode = mode
			return nil
		}
	}
	return fmt.Errorf("-mode: %q is neither %s nor %s", name, v1alpha1.ModeIPTables, v1alpha1.ModeIPVS)
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
	say := newProgress(os.Stderr)
	say.line("measuring %s; expect about %d minutes on a quiet machine with 2 cores", o.what(), o.minutes())
	results := newReport(o)
	for _, size := range o.sizes {
		var measured []result
		measured, err = measureSize(ctx, o, size, say)
		results.Results = append(results.Results, measured...)
		if err != nil {
			break
		}
	}
	if len(results.Results) == 0 {
		return err
	}
	// What is measured is told even if the rest could not be.
	results.end()
	results.print(os.Stdout)
	if writeErr := results.write(o.out); writeErr != nil {
		return errors.Join(err, writeErr)
	}
	fmt.Fprintf(os.Stdout, "\n%s\n", o.out)
	if err == nil && o.earlier != nil {
		err = results.against(o.earlier)
	}
	return err
}

func (o *options) what() string {
	var variants []string
	for _, v := range o.variants {
		variants = append(variants, string(v))
	}
	how := "iptables " + strings.Join(variants, " and ")
	if o.mode == v1alpha1.ModeIPVS {
		how = "mode IPVS"
	}
	return fmt.Sprintf("%s with %v Services x %d endpoints, %s", strings.Join(o.proxies, " and "), o.sizes, o.endpoints, how)
}

// minutes guesses how long it takes. With iptables, kube-proxy's first sync in the nf_tables
// variant grows with the square of the Services: up to 469 s were seen with 5,000.
func (o *options) minutes() int {
	var total time.Duration
	for _, size := range o.sizes {
		if o.mode == v1alpha1.ModeIPVS {
			// As it was in User-mode Linux; kube-proxy's part grows with the Services.
			total += 2*time.Minute + time.Duration(len(o.proxies))*o.churn + time.Duration(size)*time.Duration(140+10*o.moves)*time.Millisecond
			continue
		}
		total += 15*time.Second + time.Duration(size)*10*time.Millisecond
		for _, v := range o.variants {
			total += time.Duration(len(o.proxies)) * (30*time.Second + time.Duration(o.moves)*2200*time.Millisecond + o.churn)
			if v == nfTables {
				total += time.Duration(size) * time.Duration(size) * 19 * time.Microsecond
			}
		}
	}
	return int(total.Minutes()) + 1
}

// progress says how far it is, with the time since the start.
type progress struct {
	out   *os.File
	start time.Time
}

func newProgress(out *os.File) *progress { return &progress{out: out, start: time.Now()} }

func (p *progress) line(format string, args ...any) {
	fmt.Fprintf(p.out, "bench %5s  %s\n", time.Since(p.start).Round(time.Second), fmt.Sprintf(format, args...))
}
