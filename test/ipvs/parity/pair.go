package parity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/parity/beside"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// pair is the two programs.
type pair struct{ *beside.Pair }

// flushScript removes everything that proxies leave. Restoring a table without rules also removes
// its chains, with one program.
const flushScript = `for program in iptables-restore ip6tables-restore; do
printf '*nat\nCOMMIT\n*filter\nCOMMIT\n*mangle\nCOMMIT\n' | $program -w 10 || exit 1; done
ipvsadm -C && ipset destroy && ipvsadm --set 900 120 300 || exit 1
if ip link show dev kube-ipvs0 >/dev/null 2>&1; then ip link del dev kube-ipvs0 || exit 1; fi
for name in arp_ignore arp_announce; do echo 0 >/proc/sys/net/ipv4/conf/all/$name; done
for name in conntrack expire_nodest_conn expire_quiescent_template; do echo 0 >/proc/sys/net/ipv4/vs/$name; done
`

// addUnmanaged adds the virtual servers of another program to both nodes.
func (p *pair) addUnmanaged(ctx context.Context) error {
	var b strings.Builder
	fmt.Fprintln(&b, "there=$(ipvsadm -Sn) || exit 1")
	for _, key := range unmanaged() {
		fmt.Fprintf(&b, "case $there in *'%s '*) ;; *) ipvsadm -A %s -s rr || exit 1 ;; esac\n", key, key)
	}
	return p.OnNodes(ctx, b.String())
}

// write writes the world to the API server. kube-proxy is frozen from then on until Start, so that
// it needs as few syncs as possible.
func (p *pair) write(ctx context.Context, w *worlds.World, shuffle *rand.Rand) (worlds.Mark, error) {
	if err := p.KubeProxy.Freeze(); err != nil {
		return worlds.Mark{}, err
	}
	return p.Write(ctx, w, shuffle)
}

// settled waits until both have the mark and the same state, and returns what differs at the
// deadline. It reads the state when both are idle, because that takes as long as a sync.
func (p *pair) settled(ctx context.Context, s situation, m worlds.Mark, limit time.Duration, met beside.Met) ([]difference, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var found []difference
	last := beside.ErrNotSeen
	for {
		if err := p.rest(ctx); err != nil {
			if ctx.Err() != nil {
				return found, last
			}
			return nil, err
		}
		var now saved
		if now, last = p.look(context.WithoutCancel(ctx), m); last == nil {
			found, last = now.differences(s, intendedDifferences())
		}
		switch {
		case last == nil && len(found) == 0:
			names, err := now.metIn(s)
			for _, name := range names {
				met[name]++
			}
			return nil, err
		case last != nil && !errors.Is(last, beside.ErrNotSeen):
			return nil, last
		}
	}
}

// saved is the state of the two nodes, in sections for parse.
type saved struct{ reference, tested map[string][]string }

// look reads the state of the two. It checks the marks first, because that takes only one
// program.
func (p *pair) look(ctx context.Context, m worlds.Mark) (out saved, err error) {
	for _, who := range []beside.Proxy{p.KubeProxy, p.Agent} {
		now, err := readServers(ctx, who.Node)
		if err != nil {
			return out, err
		}
		for _, f := range worlds.Families() {
			if !now.marked(m, f) {
				return out, fmt.Errorf("%s %w (%s)", who.Name, beside.ErrNotSeen, f)
			}
		}
	}
	if out.reference, err = readSections(ctx, p.KubeProxy.Node); err != nil {
		return out, err
	}
	out.tested, err = readSections(ctx, p.Agent.Node)
	return out, err
}

// differences compares the two, apart from the given differences.
func (n saved) differences(s situation, apart []intended) ([]difference, error) {
	reference, err := parse(n.reference)
	if err != nil {
		return nil, err
	}
	tested, err := parse(n.tested)
	if err != nil {
		return nil, err
	}
	for _, w := range apart {
		w.apply(s, reference, tested)
	}
	return compare(reference, tested), nil
}

// metIn returns the names of the intended differences without which two programs that count as
// equal would differ.
func (n saved) metIn(s situation) (met []string, err error) {
	list := intendedDifferences()
	for i, w := range list {
		found, err := n.differences(s, slices.Delete(slices.Clone(list), i, i+1))
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			met = append(met, w.name)
		}
	}
	return met, nil
}

const (
	// pause is the time between checks of the programs' processor time.
	pause = 100 * time.Millisecond
	// resting is the number of pauses with hardly any work after which they are idle.
	resting = 4
)

// rest waits until the programs are idle.
func (p *pair) rest(ctx context.Context) error {
	for quiet, before := 0, int64(0); quiet < resting; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		if err := p.Running(); err != nil {
			return err
		}
		now := p.worked()
		quiet++
		if now > before+1 {
			quiet = 0
		}
		before = now
	}
	return nil
}

// worked returns the processor time of the programs and their children, in hundredths of a second.
func (p *pair) worked() (sum int64) {
	for _, proc := range p.Processes() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", proc.PID()))
		if err != nil {
			continue // it has ended, which Running reports
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		const userTime = 11 // then those of the system, and both of children
		if words := strings.Fields(rest); len(words) > userTime+4 {
			for _, word := range words[userTime : userTime+4] {
				n, _ := strconv.ParseInt(word, 10, 64) // a number
				sum += n
			}
		}
	}
	return sum
}
