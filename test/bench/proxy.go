package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// variant is a variant of iptables.
type variant string

const (
	nfTables variant = "nf_tables"
	legacy   variant = "legacy"
)

const (
	kubeProxyName = "kube-proxy"
	nodeproxyName = "nodeproxy"
	// kernelName is nodeproxy in mode NFTables, beside mode Userspace.
	kernelName = string(v1alpha1.ModeNFTables)
)

// proxy is a program that is measured.
type proxy struct {
	name string
	// table is that of its rules in mode NFTables.
	table string
	// command starts it on a node.
	command func(*cluster.Node) (cluster.Command, error)
}

// The histograms of syncs, of full and of partial ones, and the time of the last
// one. Both programs have them, for each IP family; but in mode IPVS kube-proxy's
// syncs are all full, and it has the first histogram alone.
const (
	allSyncs     = "kubeproxy_sync_proxy_rules_duration_seconds"
	fullSyncs    = "kubeproxy_sync_full_proxy_rules_duration_seconds"
	partialSyncs = "kubeproxy_sync_partial_proxy_rules_duration_seconds"
	lastSync     = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
	measured     = `ip_family="IPv4"`
)

func nodeproxy(n *install.Nodeproxy) *proxy {
	return &proxy{name: nodeproxyName, table: "nodeproxy", command: n.AgentCommand}
}

// kubeProxyProgram provides the kube-proxy that has a mode, and returns its path.
func kubeProxyProgram(ctx context.Context, mode v1alpha1.ProxyMode) (string, error) {
	which := os.Getenv(binaries.KubernetesVariable)
	if mode == v1alpha1.ModeUserspace {
		which = binaries.WithUserspace
	}
	directory, err := binaries.EnsureOf(ctx, os.Stderr, which, binaries.KubeProxy)
	return filepath.Join(directory, string(binaries.KubeProxy)), err
}

func kubeProxy(c *cluster.Cluster, program string, mode v1alpha1.ProxyMode) *proxy {
	return &proxy{
		name:  kubeProxyName,
		table: "kube-proxy",
		command: func(node *cluster.Node) (cluster.Command, error) {
			kubeconfig, err := c.KubeconfigFor("kube-proxy", "system:kube-proxy")
			return cluster.Command{Path: program, Args: []string{
				"--kubeconfig", kubeconfig, "--hostname-override", node.Name(), "--proxy-mode", strings.ToLower(string(mode)),
				"--cluster-cidr", "10.244.0.0/16", "--conntrack-max-per-core", "0",
			}}, err
		},
	}
}

// programs makes a directory with one variant of iptables under the plain names.
func programs(c *cluster.Cluster, v variant) (string, error) {
	multi := map[variant]string{nfTables: "xtables-nft-multi", legacy: "xtables-legacy-multi"}[v]
	target := ""
	for directory := range strings.SplitSeq(os.Getenv("PATH")+":/usr/sbin:/sbin", ":") {
		if path := filepath.Join(directory, multi); directory != "" && isFile(path) {
			target = path
			break
		}
	}
	if target == "" {
		return "", fmt.Errorf("%s not found: install the iptables package, or leave the variant %s out", multi, v)
	}
	directory := filepath.Join(c.Dir(), "iptables-"+string(v))
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, program := range []string{"", "-save", "-restore"} {
			link := filepath.Join(directory, family+program)
			if err := os.Symlink(target, link); err != nil && !os.IsExist(err) {
				return "", err
			}
		}
	}
	return directory, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// environment makes programs use the iptables of a directory, with a lock that
// that nothing else on this machine waits for.
func environment(c *cluster.Cluster, directory string) []string {
	return []string{"PATH=" + directory + ":" + os.Getenv("PATH"), "XTABLES_LOCKFILE=" + filepath.Join(c.Dir(), "xtables.lock")}
}

// syncs is how a proxy has synced so far.
type syncs struct {
	full, partial histogram
	last          time.Time
}

type histogram struct {
	count float64
	sum   float64 // seconds
}

func (s syncs) count() int { return int(s.full.count + s.partial.count) }

// since is the time spent in syncs since an earlier look.
func (s syncs) since(before syncs) time.Duration {
	return seconds(s.full.sum + s.partial.sum - before.full.sum - before.partial.sum)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// scraper reads the metrics of the proxy on a node.
type scraper struct {
	proxy  *proxy
	client *http.Client
}

func newScraper(p *proxy, node *cluster.Node) *scraper {
	transport := node.Transport()
	transport.DisableKeepAlives = false // it is read again and again
	return &scraper{proxy: p, client: &http.Client{Transport: transport, Timeout: 10 * time.Second}}
}

func (s *scraper) read(ctx context.Context) (syncs, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10249/metrics", http.NoBody)
	if err != nil {
		return syncs{}, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return syncs{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return syncs{}, err
	}
	return parseSyncs(string(text)), nil
}

// parseSyncs reads metrics in Prometheus' text form.
func parseSyncs(text string) syncs {
	var out syncs
	var all histogram
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, "{")
		labels, number, found := strings.Cut(rest, "} ")
		value, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if !found || err != nil || !strings.Contains(labels, measured) {
			continue
		}
		switch name {
		case allSyncs + "_count":
			all.count += value
		case allSyncs + "_sum":
			all.sum += value
		case fullSyncs + "_count":
			out.full.count += value
		case fullSyncs + "_sum":
			out.full.sum += value
		case partialSyncs + "_count":
			out.partial.count += value
		case partialSyncs + "_sum":
			out.partial.sum += value
		case lastSync:
			out.last = time.UnixMicro(int64(value * 1e6))
		}
	}
	if out.count() == 0 {
		out.full = all
	}
	return out
}
