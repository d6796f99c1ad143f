package iptables

import (
	"context"
	"errors"
	"fmt"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// RemoveChain deletes an empty chain from tables of one variant, in one call for
// each table. A chain that is not there, or to which rules jump, is left, and so
// is one of a variant whose programs the node lacks.
func (p *Programs) RemoveChain(ctx context.Context, commits *Commits, family dataplane.Family, variant Variant, chain string, tables ...string) error {
	t := newTools(family, NewPrograms(p.folder, variant), commits)
	if err := t.find(ctx); errors.Is(err, dataplane.ErrUnsupported) {
		return nil
	} else if err != nil {
		return err
	}
	for _, in := range tables {
		err := t.apply(ctx, fmt.Sprintf("*%s\n-X %s\nCOMMIT\n", in, chain))
		if err != nil && !isRejection(err) {
			return fmt.Errorf("delete chain %s of table %s: %w", chain, in, err)
		}
	}
	return nil
}
