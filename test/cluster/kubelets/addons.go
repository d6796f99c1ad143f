package kubelets

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

var (
	//go:embed coredns.yaml
	coreDNSManifest string
	//go:embed kubeproxy.yaml
	kubeProxyManifest string
)

// applyAddons creates what the options ask for besides the nodes, without waiting
// for it.
func (c *Cluster) applyAddons(ctx context.Context) error {
	if c.options.KubeProxy {
		if err := c.apply(ctx, "kube-proxy", kubeProxyManifest); err != nil {
			return err
		}
	}
	if c.options.CoreDNS {
		return c.apply(ctx, "coredns", coreDNSManifest)
	}
	return nil
}

// apply creates the objects of a manifest, which names what only we know.
func (c *Cluster) apply(ctx context.Context, name, manifest string) error {
	text := strings.NewReplacer(
		"{API_SERVER}", cluster.APIServerURL,
		"{POD_RANGES}", cluster.PodRanges,
		"{DNS_ADDRESS}", dnsAddress,
		"{COREDNS_IMAGE}", coreDNSImage,
		"{KUBE_PROXY_IMAGE}", kubeProxyImage,
	).Replace(manifest)
	path := filepath.Join(c.Disks(), name+".yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("installing %s: %w", name, err)
	}
	if _, err := c.Kubectl(ctx, "apply", "-f", path); err != nil {
		return fmt.Errorf("installing %s: %w", name, err)
	}
	return nil
}
