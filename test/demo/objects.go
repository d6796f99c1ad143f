package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// showObjects prints what an administrator sees, and checks the columns that
// matter.
func (d *demo) showObjects(ctx context.Context) error {
	d.report.section("What kubectl shows")
	d.report.check("all is programmed, each Service has its ServiceProxyRules", func() (string, error) {
		return "", install.Until(ctx, programmingLimit, func(ctx context.Context) error {
			return errors.Join(d.programmed(ctx), d.objectsMatchServices(ctx))
		})
	})
	d.printed(ctx, "nodeproxy", 1, "READY")
	d.printed(ctx, "nodeproxyrules", len(d.cluster.Nodes()), "PROGRAMMED")
	if d.mode == v1alpha1.ModeIPVS {
		d.showVirtualServers(ctx, d.cluster.Node(0))
	}
	d.showTracking(ctx)
	// The Service of the API server is one of all.
	d.printed(ctx, "serviceproxyrules", len(d.services), "")
	return nil
}

// printed prints what kubectl get reports of a kind, and wants a number of rows
// that have True in a column.
func (d *demo) printed(ctx context.Context, kind string, rows int, column string) {
	var out string
	title := fmt.Sprintf("kubectl get %s: %d", kind, rows)
	if column != "" {
		title += ", " + column + " is True"
	}
	d.report.check(title, func() (string, error) {
		// The summary follows the nodes' reports after a moment.
		return "", install.Until(ctx, programmingLimit, func(ctx context.Context) error {
			var err error
			if out, err = d.cluster.Kubectl(ctx, "get", kind); err != nil {
				return err
			}
			return checkTable(out, rows, column)
		})
	})
	d.report.show(out)
}

// checkTable wants a number of rows below the header, each with True in the
// given column unless that is empty.
func checkTable(text string, rows int, column string) error {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines)-1 != rows {
		return fmt.Errorf("%d rows, want %d", len(lines)-1, rows)
	}
	if column == "" {
		return nil
	}
	start := strings.Index(lines[0], column)
	if start < 0 {
		return fmt.Errorf("no column %s in %q", column, lines[0])
	}
	for _, line := range lines[1:] {
		if len(line) < start || !strings.HasPrefix(line[start:], "True") {
			return fmt.Errorf("%s is not True in: %s", column, line)
		}
	}
	return nil
}
