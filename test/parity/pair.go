package parity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/install"
	"github.com/nodeproxy-io/nodeproxy/test/parity/beside"
	"github.com/nodeproxy-io/nodeproxy/test/parity/rules"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// start is how a world finds the two proxies.
type start int

const (
	// startClean starts both with no rule in the kernel.
	startClean start = iota
	// startOver starts both on the rules that they left.
	startOver
	// startLive starts kube-proxy, which has to be restarted for other
	// settings, on the rules that it left; nodeproxy-agent runs on and follows.
	startLive
)

func (s start) String() string {
	return [...]string{
		"both started without rules", "both started on the rules of the world before",
		"kube-proxy restarted on the rules of the world before, nodeproxy-agent went on",
	}[s]
}

// pair is the two programs and what is known of their nodes.
type pair struct {
	*beside.Pair
	liberal bool // the sysctl as the agent found it
	// afterLarge: the world before was a large one. The controller may still render it while
	// the agent of the next one starts, which then omits comments for good.
	afterLarge bool
}

// possible returns the start that comes closest to what is asked for: neither
// program follows the sysctl, which an operator sets before.
func (p *pair) possible(s start, to worlds.Settings) start {
	if s == startLive && p.liberal != to.Liberal {
		return startOver
	}
	return s
}

// stop stops kube-proxy and, unless a live start follows, the agent, and
// removes the rules where a clean start follows.
func (p *pair) stop(ctx context.Context, next start) error {
	err := p.KubeProxy.Stop()
	if next == startLive {
		return err
	}
	err = errors.Join(err, p.Agent.Stop())
	if next == startClean {
		err = errors.Join(err, p.OnNodes(ctx, flushScript))
	}
	return err
}

// flushScript removes all rules and chains of iptables, and the table of kube-proxy.
const flushScript = `for program in iptables ip6tables; do for table in nat filter mangle; do for what in -F -X; do
$program -w 10 -t $table $what || exit 1; done; done; done
for family in ip ip6; do nft "add table $family kube-proxy; delete table $family kube-proxy" || exit 1; done
`

// start starts what stop stopped, with the settings of a world.
func (p *pair) start(ctx context.Context, s worlds.Settings) error {
	liberal := 0
	if s.Liberal {
		liberal = 1
	}
	p.liberal = s.Liberal
	script := fmt.Sprintf("echo %d >/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", liberal)
	if err := p.OnNodes(ctx, script); err != nil {
		return err
	}
	return p.Start(s)
}

// saved is what iptables-save and ip6tables-save print on the two nodes.
type saved struct{ reference, tested map[worlds.Family]string }

func (p *pair) save(ctx context.Context) (saved, error) {
	out := saved{map[worlds.Family]string{}, map[worlds.Family]string{}}
	for _, f := range worlds.Families() {
		var err error
		if out.tested[f], err = p.Agent.Node.Exec(ctx, saveTool(f)); err != nil {
			return out, err
		}
		if out.reference[f], err = p.KubeProxy.Node.Exec(ctx, saveTool(f)); err != nil {
			return out, err
		}
	}
	return out, nil
}

func saveTool(f worlds.Family) string {
	if f == worlds.IPv6 {
		return "ip6tables-save"
	}
	return "iptables-save"
}

// marked reports whether the rules of a family hold the mark.
func marked(m worlds.Mark, f worlds.Family, save string) bool {
	endpoint := worlds.MarkerEndpoint(f)
	if f == worlds.IPv6 {
		endpoint = "[" + endpoint + "]"
	}
	return strings.Contains(save, fmt.Sprintf("--to-destination %s:%d", endpoint, m.EndpointPort)) &&
		strings.Contains(save, fmt.Sprintf("--dport %d -j KUBE-SVC-", m.Port))
}

// savedWith returns the rules of both, or an error that wraps beside.ErrNotSeen as
// soon as one of them lacks the mark.
func (p *pair) savedWith(ctx context.Context, m worlds.Mark) (saved, error) {
	out := saved{map[worlds.Family]string{}, map[worlds.Family]string{}}
	for _, f := range worlds.Families() {
		for who, texts := range map[beside.Proxy]map[worlds.Family]string{p.Agent: out.tested, p.KubeProxy: out.reference} {
			text, err := who.Node.Exec(ctx, saveTool(f))
			if err != nil {
				return out, err
			}
			if !marked(m, f, text) {
				return out, fmt.Errorf("%s %w (%s)", who.Name, beside.ErrNotSeen, f)
			}
			texts[f] = text
		}
	}
	return out, nil
}

// situationOf is what an intended difference may depend on in a world.
func situationOf(w *worlds.World, f worlds.Family, fresh bool) situation {
	return situation{family: f, localhost: w.Settings.LocalhostInEffect(w.Node), fresh: fresh, large: w.Large(f)}
}

// settled waits until both have the mark and the same rules, and returns what
// differs at the deadline. It counts the differences that were met.
func (p *pair) settled(ctx context.Context, w *worlds.World, m worlds.Mark, fresh bool, limit time.Duration, met beside.Met) ([]rules.Difference, error) {
	var now saved
	var found []rules.Difference
	err := install.Until(ctx, limit, func(ctx context.Context) error {
		if err := p.Running(); err != nil {
			return err
		}
		var err error
		if now, err = p.savedWith(ctx, m); err != nil {
			return err
		}
		found = nil
		for _, f := range worlds.Families() {
			more, err := differences(situationOf(w, f, fresh), now.reference[f], now.tested[f], intendedDifferences())
			if err != nil {
				return err
			}
			found = append(found, more...)
		}
		if len(found) > 0 {
			return errDiffer
		}
		return nil
	})
	if errors.Is(err, errDiffer) || len(found) > 0 && ctx.Err() == nil && !errors.Is(err, install.ErrEnded) {
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	for _, f := range worlds.Families() {
		names, err := metIn(situationOf(w, f, fresh), now.reference[f], now.tested[f])
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			met[name]++
		}
	}
	return nil, nil
}

// errDiffer means that both have all changes and differ.
var errDiffer = errors.New("the rules differ")
