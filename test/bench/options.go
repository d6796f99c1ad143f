package main

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

// defaultChurn is how long endpoints are changed unless the command line sets it.
const defaultChurn = time.Minute

// options are the command line.
type options struct {
	mode     v1alpha1.ProxyMode
	bin      string
	config   string
	out      string
	sizes    []size
	variants []variant
	proxies  []string
	moves    int // endpoints moved to see when the first connection arrives
	// patience is how long kube-proxy's first sync may take.
	patience time.Duration
	churn    time.Duration
	// changes and connections are those per second in the churn.
	changes, connections int
	logs                 string
	// earlier are ratios to compare with; nil: none.
	earlier *report
}

// size is a number of Services with a number of endpoints each.
type size struct{ services, endpoints int }

func (s size) String() string { return fmt.Sprintf("%dx%d", s.services, s.endpoints) }

// parseSize reads "5000x10", or "5000" for the given number of endpoints.
func parseSize(word string, endpoints int) (size, error) {
	left, right, both := strings.Cut(word, "x")
	s := size{endpoints: endpoints}
	var err error
	if s.services, err = strconv.Atoi(left); err == nil && both {
		s.endpoints, err = strconv.Atoi(right)
	}
	if err != nil || s.services < 1 || s.services > maxServices || s.endpoints < 1 || s.endpoints > maxEndpoints {
		return s, fmt.Errorf("-sizes: %q with %d endpoints is not 1 to %d Services, each with 1 to %d endpoints", word, s.endpoints, maxServices, maxEndpoints)
	}
	return s, nil
}

func parse(args []string) (options, error) {
	var (
		o                       options
		sizes, variants, proxys string
		mode, against           string
		endpoints               int
	)
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&mode, "mode", string(v1alpha1.ModeIPTables), "the `mode` of both proxies: IPTables, IPVS, NFTables or Userspace")
	flags.StringVar(&o.bin, "bin", "bin", "`directory` with nodeproxy-controller and nodeproxy-agent")
	flags.StringVar(&o.config, "config", "config", "`directory` with the CRDs and roles")
	flags.StringVar(&o.out, "out", filepath.Join("dist", "bench.json"), "`file` for the results as JSON")
	flags.StringVar(&sizes, "sizes", "1000 5000", "`numbers` of Services, as in 5000 or, with another number of endpoints, 5000x50")
	flags.StringVar(&variants, "variants", "nf_tables legacy", "`variants` of iptables, in mode IPTables")
	flags.StringVar(&proxys, "proxies", "", "the `proxies` to measure; empty: all, to compare them")
	flags.IntVar(&endpoints, "endpoints", 10, "endpoints of each Service")
	flags.IntVar(&o.moves, "moves", 25, "how often an endpoint is moved to see when the first connection arrives")
	flags.DurationVar(&o.patience, "patience", 0, "how long kube-proxy's first sync may take before nothing more is measured of it; 0: 10m in mode NFTables, else 30m")
	flags.StringVar(&against, "against", "", "`file` with the ratios of an earlier run, of which none may be clearly worse now; empty: nothing is compared")
	flags.DurationVar(&o.churn, "churn", defaultChurn, "how long endpoints are changed continuously")
	flags.IntVar(&o.changes, "changes", 0, "endpoints changed per second meanwhile; 0: 20 in mode NFTables, else 10")
	flags.IntVar(&o.connections, "connections", -1, "connections opened per second meanwhile; -1: 1000 in mode NFTables, else none")
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
		s, err := parseSize(word, endpoints)
		if err != nil {
			return o, err
		}
		o.sizes = append(o.sizes, s)
	}
	if err := o.setVariants(variants); err != nil {
		return o, err
	}
	all := []string{kubeProxyName, nodeproxyName}
	if o.mode == v1alpha1.ModeUserspace {
		all = append(all, kernelName)
	}
	o.proxies = strings.Fields(proxys)
	for _, word := range o.proxies {
		if !slices.Contains(all, word) {
			return o, fmt.Errorf("-proxies: %q is none of %v", word, all)
		}
	}
	if len(o.proxies) == 0 {
		o.proxies = all
	}
	if len(o.sizes) == 0 || len(o.variants) == 0 {
		return o, errors.New("nothing to measure: give at least one size and one variant")
	}
	if o.moves < 2 || o.patience <= 0 || o.churn < time.Second || o.changes < 1 || o.connections < 0 || o.changes > maxPace || o.connections > maxPace {
		return o, fmt.Errorf("-moves must be at least 2, -churn at least 1s, -patience positive, -changes and -connections at most %d", maxPace)
	}
	return o, nil
}

// maxPace is how many changes or connections per second this program can make.
const maxPace = 5000

// setMode sets the mode and what depends on it unless the command line sets it.
func (o *options) setMode(name string) error {
	modes := []v1alpha1.ProxyMode{v1alpha1.ModeIPTables, v1alpha1.ModeIPVS, v1alpha1.ModeNFTables, v1alpha1.ModeUserspace}
	i := slices.IndexFunc(modes, func(mode v1alpha1.ProxyMode) bool { return strings.EqualFold(name, string(mode)) })
	if i < 0 {
		return fmt.Errorf("-mode: %q is none of %v", name, modes)
	}
	o.mode = modes[i]
	patience, changes, connections := 30*time.Minute, 10, 0
	if o.mode == v1alpha1.ModeNFTables {
		patience, changes, connections = 10*time.Minute, 20, 1000
	}
	if o.patience == 0 {
		o.patience = patience
	}
	if o.changes == 0 {
		o.changes = changes
	}
	if o.connections == -1 {
		o.connections = connections
	}
	return nil
}

func (o *options) setVariants(variants string) error {
	switch {
	case o.mode == v1alpha1.ModeNFTables, o.mode == v1alpha1.ModeUserspace:
		variants = string(nfTables) // as its packages install it; there are no rules, or few
	case o.mode == v1alpha1.ModeIPVS:
		// A handful of rules, whatever there is: the variant makes no difference.
		variants, _, _ = strings.Cut(strings.TrimSpace(variants), " ")
		if uml.Inside() {
			variants = string(legacy) // the only one there
		}
	}
	for word := range strings.FieldsSeq(variants) {
		v := variant(word)
		if v != nfTables && v != legacy {
			return fmt.Errorf("-variants: %q is neither %s nor %s", word, nfTables, legacy)
		}
		o.variants = append(o.variants, v)
	}
	return nil
}

func (o *options) what() string {
	var variants []string
	for _, v := range o.variants {
		variants = append(variants, string(v))
	}
	how := "iptables " + strings.Join(variants, " and ")
	if o.mode != v1alpha1.ModeIPTables {
		how = "mode " + string(o.mode)
	}
	return fmt.Sprintf("%s with %v Services x endpoints, %s", strings.Join(o.proxies, " and "), o.sizes, how)
}

// minutes guesses how long it takes. kube-proxy's first sync grows with the square of the
// Services: with iptables, in the nf_tables variant, up to 469 s were seen with 5,000, and
// in mode NFTables 1,000 s with 44,000.
func (o *options) minutes() int {
	var total time.Duration
	for _, s := range o.sizes {
		n := time.Duration(s.services)
		if o.mode == v1alpha1.ModeUserspace {
			total += 30*time.Second + time.Duration(len(o.proxies))*(20*time.Second+rounds*(5*window+3*warmUp))
			continue
		}
		if o.mode == v1alpha1.ModeIPVS {
			// As it was in User-mode Linux; kube-proxy's part grows with the Services.
			total += 2*time.Minute + time.Duration(len(o.proxies))*o.churn + n*time.Duration(140+10*o.moves)*time.Millisecond
			continue
		}
		total += 15*time.Second + n*10*time.Millisecond
		for _, v := range o.variants {
			total += time.Duration(len(o.proxies)) * (time.Minute + time.Duration(o.moves)*2200*time.Millisecond + o.churn)
			switch {
			case !slices.Contains(o.proxies, kubeProxyName):
			case o.mode == v1alpha1.ModeNFTables:
				total += min(o.patience, n*n*520*time.Nanosecond)
			case v == nfTables:
				total += n * n * 19 * time.Microsecond
			}
		}
	}
	return int(total.Minutes()) + 1
}
