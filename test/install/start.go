package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
)

// Start starts a cluster for a test that writes EndpointSlices itself, with nodeproxy's programs
// beside it and nothing installed. The cluster is removed when the test ends. It skips the test
// on a machine that cannot have clusters.
func Start(t *testing.T, nodes int, packages ...string) *Nodeproxy {
	t.Helper()
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM)
	t.Cleanup(stop)
	bin := t.TempDir()
	config, configErr := filepath.Abs("../../config")
	scheme, schemeErr := Scheme()
	if err := errors.Join(configErr, schemeErr, programs.Into(ctx, bin, packages...)); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(ctx, cluster.Options{Nodes: nodes, Scheme: scheme, NoControllers: true, Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return &Nodeproxy{Cluster: c, Bin: bin, Config: config}
}

// ProgrammedOn returns nil when a node reports that its condition Programmed is True, with
// whatever restrictions.
func (n *Nodeproxy) ProgrammedOn(ctx context.Context, node *cluster.Node) error {
	rules := &v1alpha1.NodeProxyRules{}
	if err := n.Cluster.Client().Get(ctx, client.ObjectKey{Name: node.Name()}, rules); err != nil {
		return err
	}
	if c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed); c == nil || c.Status != metav1.ConditionTrue {
		return fmt.Errorf("%s: Programmed is %+v", node.Name(), c)
	}
	return nil
}
