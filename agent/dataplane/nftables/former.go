package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/kubeproxy"
)

// removeFormer removes the table that a kube-proxy which no longer runs has left. Packets meet it
// after ours, and beside that of other modes, so it is called only once all Services are
// programmed, and while the agent owns the node's proxy rules: a kube-proxy that runs makes the
// table again, which shows it.
func (d *Dataplane) removeFormer(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err // ownership may have ended
	}
	if err := d.connect(); err != nil {
		if errors.Is(err, dataplane.ErrUnsupported) {
			return nil // there is no table
		}
		return err
	}
	return d.deleteTable(tableOf(d.family, kubeproxy.TableName))
}

// Relinquish implements dataplane.Dataplane. Packets meet our table before the rules of other
// proxies.
func (d *Dataplane) Relinquish(ctx context.Context, serves bool) (remain string, err error) {
	if serves {
		if err := d.Cleanup(ctx, dataplane.CleanupOptions{}); err != nil {
			return tableText(d.family), err
		}
		return "", nil
	}
	if err := d.connect(); err != nil {
		if errors.Is(err, dataplane.ErrUnsupported) {
			return "", nil // there is no table
		}
		return "", err
	}
	found, _, err := d.kernel.HasTable(tableOf(d.family, TableName))
	switch {
	case lacksTables(err), err == nil && !found:
		return "", nil
	case err != nil:
		return "", d.failed(err)
	default:
		return tableText(d.family), nil
	}
}

// tableText names our table as the program nft does.
func tableText(family dataplane.Family) string {
	if family == dataplane.IPv6 {
		return "nf_tables table ip6 " + TableName
	}
	return "nf_tables table ip " + TableName
}

// deleteTable deletes a table if there is one.
func (d *Dataplane) deleteTable(t nft.Table) error {
	found, _, err := d.kernel.HasTable(t)
	switch {
	case lacksTables(err):
		return nil
	case err != nil || !found:
		return d.failed(err)
	}
	var b nft.Batch
	b.DeleteTable(t)
	if err := d.kernel.Commit(&b, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return d.failed(fmt.Errorf("delete nf_tables table %s: %w", t.Name, err))
	}
	return nil
}

// lacksTables reports whether an error means that the kernel has no nf_tables, or not for the
// family.
func lacksTables(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
}
