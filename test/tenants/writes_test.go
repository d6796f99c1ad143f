package tenants

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// writes are those of the crowd's NodeProxyRules before an attack.
type writes struct {
	count int64
	at    time.Time
}

// countWrites notes how often the crowd's NodeProxyRules have been written.
func (r *rig) countWrites(ctx context.Context) (err error) {
	r.writes.at = time.Now()
	r.writes.count, err = r.crowdWrites(ctx)
	return err
}

// crowdWrites is how often the crowd's NodeProxyRules have been written.
func (r *rig) crowdWrites(ctx context.Context) (count int64, err error) {
	list := &v1alpha1.NodeProxyRulesList{}
	if err := r.cluster.Client().List(ctx, list); err != nil {
		return 0, err
	}
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, crowdPrefix) {
			count += list.Items[i].Generation
		}
	}
	return count, nil
}

// crowdWritten returns nil once the attack has reached as many nodes as the crowd has.
func (r *rig) crowdWritten(ctx context.Context) error {
	now, err := r.crowdWrites(ctx)
	if err == nil && now-r.writes.count < crowd {
		err = fmt.Errorf("%d NodeProxyRules of the crowd are written, want %d", now-r.writes.count, crowd)
	}
	return err
}

// writesPaced returns nil if no more was written than the pacing of controllers/nodes lets slices of a
// namespace cause: twice as many nodes as there are in a row, but at least 500, and a twentieth of them
// a second, but at least 20. Besides, 8 may have been in the queue already.
func (r *rig) writesPaced(ctx context.Context) error {
	now, err := r.crowdWrites(ctx)
	if err != nil {
		return err
	}
	nodes := crowd + len(r.cluster.Nodes())
	took := time.Since(r.writes.at)
	most := int64(max(500, 2*nodes)+8) + int64(took.Seconds()*float64(max(20, nodes/20)))
	if now-r.writes.count > most {
		return fmt.Errorf("%d NodeProxyRules of the crowd were written in %s, more than %d", now-r.writes.count, took, most)
	}
	return nil
}
