package parity

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/parity/beside"
	"github.com/nodeproxy-io/nodeproxy/test/parity/worlds"
)

// pair is the two programs.
type pair struct{ *beside.Pair }

// flushScript removes all that proxies leave. To restore a table without rules
// removes its chains as well, by one program.
const flushScript = `for program in iptables-restore ip6tables-restore; do
printf '*nat\nCOMMIT\n*filter\nCOMMIT\n*mangle\nCOMMIT\n' | $program -w 10 || exit 1; done
ipvsadm -C && ipset destroy && ipvsadm --set 900 120 300 || exit 1
if ip link show dev kube-ipvs0 >/dev/null 2>&1; then ip link del dev kube-ipvs0 || exit 1; fi
for name in arp_ignore arp_announce; do echo 0 >/proc/sys/net/ipv4/conf/all/$name; done
for name in conntrack expire_nodest_conn expire_quiescent_template; do echo 0 >/proc/sys/net/ipv4/vs/$name; done
`

// addForeign gives both nodes the virtual servers of somebody else.
func (p *pair) addForeign(ctx context.Context) error {
	var b strings.Builder
	fmt.Fprintln(&b, "there=$(ipvsadm -Sn) || exit 1")
	for _, key := range foreign() {
		fmt.Fprintf(&b, "case $there in *'%s '*) ;; *) ipvsadm -A %s -s rr || exit 1 ;; esac\n", key, key)
	}
	return p.OnNodes(ctx, b.String())
}

// write makes the API server hold the world. kube-proxy stands still from then on,
// until Start, so that it takes all changes in as few syncs as it can.
func (p *pair) write(ctx context.Context, w *worlds.World, shuffle *rand.Rand) (worlds.Mark, error) {
	if err := p.KubeProxy.Freeze(); err != nil {
		return worlds.Mark{}, err
	}
	return p.Write(ctx, w, shuffle)
}

// settled waits until both have the mark and hold the same, and returns what differs
// at the deadline. It looks when both rest, because looking takes as long as a sync.
func (p *pair) settled(ctx context.Context, s situation, m worlds.Mark, limit time.Duration, met map[string]int) ([]difference, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var differences []difference
	last := beside.ErrNotSeen
	for {
		if err := p.rest(ctx); err != nil {
			if ctx.Err() != nil {
				return differences, last
			}
			return nil, err
		}
		var once map[string]int
		differences, once, last = p.look(context.WithoutCancel(ctx), s, m)
		switch {
		case last == nil && len(differences) == 0:
			for name, n := range once {
				met[name] += n
			}
			return nil, nil
		case last != nil && !errors.Is(last, beside.ErrNotSeen):
			return nil, last
		}
	}
}

// look compares what the two hold now. The marks come first, because they need one
// program, and all needs many.
func (p *pair) look(ctx context.Context, s situation, m worlds.Mark) ([]difference, map[string]int, error) {
	both := []beside.Proxy{p.KubeProxy, p.Agent}
	for _, who := range both {
		now, err := readServers(ctx, who.Node)
		if err != nil {
			return nil, nil, err
		}
		for _, f := range worlds.Families() {
			if !now.marked(m, f) {
				return nil, nil, fmt.Errorf("%s %w (%s)", who.Name, beside.ErrNotSeen, f)
			}
		}
	}
	var states []*state
	for _, who := range both {
		now, err := read(ctx, who.Node)
		if err != nil {
			return nil, nil, err
		}
		states = append(states, now)
	}
	reference, tested := states[0], states[1]
	once := map[string]int{}
	takeWanted(s, reference, tested, once)
	return compare(reference, tested), once, nil
}

const (
	// pause is between two looks at how much the programs have worked.
	pause = 100 * time.Millisecond
	// resting is for how many of these they have hardly worked when they rest.
	resting = 4
)

// rest waits until the programs rest.
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

// worked is the time that the programs, and those that they ran, have had of the
// processor, in hundredths of a second.
func (p *pair) worked() (sum int64) {
	for _, proc := range p.Processes() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", proc.PID()))
		if err != nil {
			continue // it has ended, which Running tells
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
