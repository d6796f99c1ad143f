package kubelets

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

// EchoImage is the image of the echo server of package cluster, which each node
// has. Its entrypoint is the server; see test/cluster/cmd/echo for its arguments.
const EchoImage = "nodeproxy.test/echo:1"

const (
	pauseImage   = "nodeproxy.test/pause:1"
	coreDNSImage = "nodeproxy.test/coredns:1"
	// kubeProxyImage has the same tag whatever the version of Kubernetes is.
	kubeProxyImage = "nodeproxy.test/kube-proxy:1"
)

const commandsOfCluster = "github.com/nodeproxy-io/nodeproxy/test/cluster/cmd/"

// makeImages makes the images that each node has and returns their archives.
func (c *Cluster) makeImages(ctx context.Context) ([]string, error) {
	directory := filepath.Join(c.Disks(), "images")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, fmt.Errorf("making images: %w", err)
	}
	if err := programs.Into(ctx, directory, commandsOfCluster+"pause", commandsOfCluster+"echo"); err != nil {
		return nil, fmt.Errorf("making images: %w", err)
	}
	images := map[string]image{
		"pause": programImage(pauseImage, "pause", filepath.Join(directory, "pause")),
		"echo":  programImage(EchoImage, "echo", filepath.Join(directory, "echo")),
	}
	if c.options.CoreDNS {
		images["coredns"] = programImage(coreDNSImage, "coredns", filepath.Join(c.Assets(), string(binaries.CoreDNS)))
	}
	if c.options.KubeProxy {
		i := programImage(kubeProxyImage, "kube-proxy", filepath.Join(c.Assets(), string(binaries.KubeProxy)))
		base, err := imageNamed("nodeproxy-agent", c.options.Images)
		if err != nil {
			return nil, fmt.Errorf("kube-proxy needs the programs that are in the image of the agent: %w", err)
		}
		i.base = base
		images["kube-proxy"] = i
	}
	var archives []string
	for name, i := range images {
		archive := filepath.Join(directory, name+".tar")
		if err := i.writeArchive(archive); err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

// programImage is an image with one program, which is its entrypoint.
func programImage(tag, name, program string) image {
	return image{name: tag, files: map[string]string{name: program}, entrypoint: []string{"/" + name}}
}

// imageNamed finds the archive of the image whose name ends so, before its tag.
func imageNamed(name string, archives []string) (string, error) {
	for _, archive := range archives {
		index, _, err := readArchive(archive)
		if err != nil {
			return "", err
		}
		for _, tag := range index.RepoTags {
			if strings.Contains(tag, "/"+name+":") {
				return archive, nil
			}
		}
	}
	return "", fmt.Errorf("no archive of %s is among Options.Images", name)
}
