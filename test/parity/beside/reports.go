package beside

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

const (
	// Calm is for how long a node must report no difference: longer than a difference
	// must last to count.
	Calm = 8 * time.Second
	// shortestPause is the shortest between two looks at what is reported.
	shortestPause = 100 * time.Millisecond
)

// Audits counts how often an agent with -v 2 has compared, by its log. No metric counts that.
func Audits(agent *cluster.Process) (int, error) {
	log, err := os.ReadFile(agent.Log())
	return strings.Count(string(log), `"Compared the kernel with the desired state"`), err
}

// Reports waits until the common node, which the agent audits, has reported for some
// time what is right: the reason of the condition Programmed, and how many things
// differ. That time begins when the agent has audited again since the last call: it does
// so only if something has changed. It returns the last report as human-readable text, and
// before it what was not right.
func (p *Pair) Reports(ctx context.Context, limit, calm time.Duration, right func(reason string, count int32) bool) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	since, wrong := time.Now(), ""
	for {
		if err := p.Running(); err != nil {
			return "", err
		}
		began := time.Now()
		audits, err := Audits(p.Agent.Process)
		if err != nil {
			return "", err
		}
		now, ok := p.reported(ctx, right)
		switch {
		case ctx.Err() != nil:
		case !ok:
			since, wrong = time.Now(), now
		case audits == p.audits:
			since = time.Now()
		case time.Since(since) >= calm:
			if wrong != "" {
				now = fmt.Sprintf("%s; before: %s", now, wrong)
			}
			p.audits = audits
			return now, nil
		}
		// Looking leaves the processor to what is waited for.
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("not as it has to be for %s within %s, with %d audits, %d of them before; last: %s", calm, limit, audits, p.audits, wrong)
		case <-time.After(max(shortestPause, time.Since(began))):
		}
	}
}

// reported is what the common node reports, and whether that is right.
func (p *Pair) reported(ctx context.Context, right func(reason string, count int32) bool) (string, bool) {
	rules := &v1alpha1.NodeProxyRules{}
	if err := p.Nodeproxy.Cluster.Client().Get(ctx, client.ObjectKey{Name: worlds.NodeName}, rules); err != nil {
		return err.Error(), false
	}
	c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
	if c == nil {
		return "not reported yet", false
	}
	d := rules.Status.Difference
	return fmt.Sprintf("%s: %s; difference %+v", c.Reason, c.Message, d), d != nil && right(c.Reason, d.Count)
}
