package beside

import (
	"context"
	"errors"
	"os"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// Install starts a cluster with two nodes, on which nothing runs, nodeproxy-controller,
// and the namespaces of drawn objects. Programs of nodeproxy are in directory bin; config
// is the directory of that name of this repository. The caller stops the cluster.
func Install(ctx context.Context, options cluster.Options, bin, config string) (*install.Nodeproxy, error) {
	if _, err := binaries.Ensure(ctx, os.Stderr, binaries.KubeProxy); err != nil {
		return nil, err
	}
	scheme, err := install.Scheme()
	if err != nil {
		return nil, err
	}
	options.Nodes, options.Scheme, options.Progress = 2, scheme, os.Stderr
	c, err := cluster.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	n := &install.Nodeproxy{Cluster: c, Bin: bin, Config: config}
	if err := prepare(ctx, n); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return n, nil
}

func prepare(ctx context.Context, n *install.Nodeproxy) error {
	if err := n.Prepare(ctx); err != nil {
		return err
	}
	if _, err := n.StartController(); err != nil {
		return err
	}
	return worlds.MakeNamespaces(ctx, n.Cluster.Client())
}
