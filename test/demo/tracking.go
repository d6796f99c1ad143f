package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// showTracking shows how full the nodes' connection tracking tables are.
func (d *demo) showTracking(ctx context.Context) {
	d.report.check("each node reports its connection tracking table", func() (string, error) {
		var reported []string
		err := install.Until(ctx, programmingLimit, func(ctx context.Context) error {
			list := &v1alpha1.NodeProxyRulesList{}
			if err := d.cluster.Client().List(ctx, list); err != nil {
				return err
			}
			reported = nil
			for _, node := range list.Items {
				t := node.Status.Conntrack
				if t == nil || t.Max == 0 || t.Buckets == 0 {
					return fmt.Errorf("%s reports %+v", node.Name, t)
				}
				reported = append(reported, fmt.Sprintf("%s %d of %d, %d dropped", node.Name, t.Entries, t.Max, t.Drop))
			}
			return nil
		})
		return strings.Join(reported, "; "), err
	})
}
