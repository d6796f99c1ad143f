package iptables

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
)

// audited remembers a comparison beside another proxy, so that the next one only costs what has
// changed.
type audited struct {
	want      *desired
	services  map[dataplane.ServiceName]*dataplane.Service // from which want was planned
	prune     bool
	preserved int // Services of Ruleset.Preserve
	since     moment
	unread    int // comparisons since
	warned    int // comparisons since the warnings were updated
	result    dataplane.Difference
}

// warnEvery is the number of comparisons between updates of warnings, which take as
// long as reading the rules.
const warnEvery = 10

// audit is Verify beside another proxy.
func (d *Dataplane) audit(ctx context.Context, r *dataplane.Ruleset) (dataplane.Difference, error) {
	if d.audited == nil {
		if err := d.kernel.probe(); err != nil {
			return dataplane.Difference{}, err
		}
	}
	// Another program may maintain the rules.
	d.actual, d.seen, d.spare = nil, moment{}, nil
	c, err := d.config(r)
	if err != nil {
		return dataplane.Difference{}, err
	}
	c.flat = true
	d.noteAddresses(c)
	next := &audited{prune: r.Prune, preserved: len(r.Preserve)}
	same := next.plan(d.audited, c, r.Services)
	next.since = momentOf(d.kernel) // before reading: what comes later is noticed next time
	if last := d.audited; same && last.since.sameAs(next.since) && last.prune == r.Prune && last.preserved == next.preserved && last.unread < maxUnread {
		last.unread++
		last.warn(ctx, d.kernel, last)
		unread := last.result
		unread.Unread = true
		return unread, nil
	}
	state, err := d.kernel.read(ctx)
	if err != nil {
		return dataplane.Difference{}, err
	}
	if d.kernel.legacy() {
		d.entries.Store(&entries{total: state.entries()})
	}
	d.engine.Begin()
	next.takeParts(state)
	found := auditFindings(next.want, state, &scope{modes: d.modes, prune: r.Prune, preserved: engine.PreservedOf(r)})
	next.result = dataplane.DifferenceOf(found, dataplane.VerifyOptions{Audit: true})
	next.result.Counts = state.ours(next.want).counts()
	next.warn(ctx, d.kernel, d.audited)
	d.audited = next
	return next.result, nil
}

// warn copies the warnings of the last comparison, or updates them if they are
// old.
func (a *audited) warn(ctx context.Context, k kernel, last *audited) {
	if last != nil && last.warned < warnEvery {
		a.warned, a.result.Warnings = last.warned+1, last.result.Warnings
		return
	}
	a.warned, a.result.Warnings = 1, k.warnings(ctx)
}

// plan plans the Services that have changed since last. It reports
// whether none has.
func (a *audited) plan(last *audited, c *config, services map[dataplane.ServiceName]*dataplane.Service) bool {
	a.want = &desired{config: c, services: make(map[dataplane.ServiceName]*planned, len(services))}
	a.services = make(map[dataplane.ServiceName]*dataplane.Service, len(services))
	reuse := last != nil
	if reuse {
		previous := *last.want.config
		previous.terse = c.terse // comments make no difference
		reuse = reflect.DeepEqual(&previous, c)
	}
	same := reuse && len(services) == len(last.services)
	for name, svc := range services {
		a.services[name] = svc
		// A Service is never changed, only replaced.
		if reuse && last.services[name] == svc {
			a.want.services[name] = last.want.services[name]
			continue
		}
		same = false
		if !hasParts(svc) { // see takeParts
			a.want.services[name] = c.planned(svc)
		}
	}
	return same
}

// takeParts expects large Services in parts, as this mode writes them, unless the kernel has rather
// the one chain of kube-proxy, which removes parts late.
func (a *audited) takeParts(state *kernelState) {
	inParts := *a.want.config
	inParts.flat = false
	differing := func(p *planned) (n int) {
		for _, c := range p.chains {
			if have := state.chains[chainID{nat, c.name}]; have == nil || have.hash != c.hash {
				n++
			}
		}
		return n
	}
	for name, svc := range a.services {
		if hasParts(svc) {
			parts, flat := inParts.planned(svc), a.want.config.planned(svc)
			if differing(flat) < differing(parts) {
				parts = flat
			}
			a.want.services[name] = parts
		}
	}
}

// kind is how the kernel differs in one place: a text with chain, table, Service and rule.
type kind string

const (
	chainMissing    kind = "chain %[1]s missing in %[2]s%[3]s"
	chainDiffers    kind = "chain %[1]s differs in %[2]s%[3]s"
	chainUnexpected kind = "unexpected chain %[1]s in %[2]s"
	ruleMissing     kind = "rule missing in %[1]s of %[2]s%[3]s: %[4]s"
	ruleUnexpected  kind = "unexpected rule in %[1]s of %[2]s: %[4]s" // its comment names the Service
	fixedDiffer     kind = "fixed rules of %[1]s of %[2]s differ"
	jumpMissing     kind = "jump missing in %[1]s of %[2]s: %[4]s"
)

type found struct {
	kind    kind
	in      chainID
	spec    string                // of a rule or jump
	service dataplane.ServiceName // zero: none, or unknown
	want    uint64                // hash of a chain
	have    uint64
}

// String is a human-readable sentence.
func (f found) String() string {
	of := ""
	if f.service != (dataplane.ServiceName{}) {
		of = fmt.Sprintf(" (Service %s)", f.service)
	}
	return fmt.Sprintf(string(f.kind), f.in.name, f.in.table, of, f.spec)
}

// key stays the same while the desired and the actual state do.
func (f found) key() string { return fmt.Sprintf("%s %x %x", f, f.want, f.have) }

func find(w *desired, k *kernelState, s *scope, report func(found)) {
	for name, chains := range compareChains(w, k, s) {
		if _, rejected := s.rejected[name]; rejected {
			continue
		}
		for _, c := range chains {
			f := found{kind: chainMissing, in: chainID{nat, c}, service: name}
			if have := k.chains[f.in]; have != nil {
				f.kind, f.have = chainDiffers, have.hash
			}
			if i := slices.IndexFunc(w.services[name].chains, func(p plannedChain) bool { return p.name == c }); i >= 0 {
				f.want = w.services[name].chains[i].hash
			}
			report(f)
		}
	}
	for _, sd := range compareShared(w, k, s) {
		if sd.missing {
			report(found{kind: chainMissing, in: sd.chain.id})
			continue
		}
		for _, r := range sd.add {
			report(found{kind: ruleMissing, in: sd.chain.id, service: r.owner, spec: r.spec})
		}
		for _, spec := range sd.remove {
			report(found{kind: ruleUnexpected, in: sd.chain.id, spec: spec})
		}
		if sd.fixed {
			report(found{kind: fixedDiffer, in: sd.chain.id})
		}
	}
	for _, j := range missingJumps(w.config.jumps(), k) {
		report(found{kind: jumpMissing, in: builtIn(&j), spec: j.Rule})
	}
	if s.prune {
		for _, c := range staleChains(w, k, s) {
			if !s.stuck.Has(c) {
				report(found{kind: chainUnexpected, in: chainID{nat, c}})
			}
		}
	}
}

// auditFindings are the differences that affect packets. They omit what only a kube-proxy
// has, by intention; docs/parity.md has the list.
func auditFindings(w *desired, k *kernelState, s *scope) []dataplane.Finding {
	var (
		out    []dataplane.Finding
		beside *besides
	)
	tail := tailInAnyOrder(w, k)
	find(w, k, s, func(f found) {
		switch f.kind {
		case fixedDiffer:
			if tail != nil && f.in == (chainID{nat, chainServices}) {
				return
			}
		case chainUnexpected:
			// It affects packets only if a rule leads to it that is itself
			// a difference. kube-proxy deletes chains late in a large cluster.
			return
		case ruleUnexpected:
			if beside == nil {
				beside = newBesides(w)
			}
			if beside.idle(f) || tail[ruleHash(f.spec)] && f.in == (chainID{nat, chainServices}) {
				return
			}
			if name, ok := commentOwner(comment(f.spec)); ok {
				f.service = name
			}
		}
		out = append(out, dataplane.Finding{Service: f.service, Key: f.key(), Text: f.String()})
	})
	return out
}

// tailInAnyOrder returns the hashes of the last rules of nat KUBE-SERVICES, one for
// each address that NodePorts answer on, if all are there: kube-proxy writes them in any order.
// Otherwise it returns nil.
func tailInAnyOrder(w *desired, k *kernelState) map[uint64]bool {
	have, tail := k.chains[chainID{nat, chainServices}], w.config.nodePortTail()
	if have == nil || len(have.rules) < len(tail) {
		return nil
	}
	hashes := map[uint64]bool{}
	for _, spec := range tail {
		hashes[ruleHash(spec)] = true
	}
	found := map[uint64]bool{}
	for _, r := range have.rules[len(have.rules)-len(tail):] {
		if !hashes[r.hash] || found[r.hash] {
			return nil
		}
		found[r.hash] = true
	}
	return hashes
}

// besides knows rules that only kube-proxy has and that affect no packet.
type besides struct {
	// rules are the desired rules of Services, matches the same without targets.
	rules, matches map[placed]bool
}

func newBesides(w *desired) *besides {
	b := &besides{rules: map[placed]bool{}, matches: map[placed]bool{}}
	for _, p := range w.services {
		for _, r := range p.dispatch {
			b.rules[r.placed()] = true
			b.matches[placed{r.in, ruleHash(withoutTarget(r.spec))}] = true
		}
	}
	return b
}

// idle reports whether a rule that is not desired affects no packet.
func (b *besides) idle(f found) bool {
	switch f.in {
	case chainID{nat, chainNodePorts}:
		// It counts packets to 127.0.0.1 and does what a later rule does with
		// all packets to this port.
		const local = "-d 127.0.0.0/8 "
		return strings.Contains(f.spec, "nfacct") && strings.Contains(f.spec, local) &&
			b.rules[placed{f.in, ruleHash(strings.Replace(f.spec, local, "", 1))}]
	case chainID{nat, chainServices}:
		// An address that is an external IP, too: the rule for that one comes
		// first.
		return strings.HasSuffix(comment(f.spec), " loadbalancer IP") && b.matches[placed{f.in, ruleHash(withoutTarget(f.spec))}]
	default:
		return false
	}
}

// withoutTarget is a rule without its target, which comes last.
func withoutTarget(spec string) string {
	before, _, _ := strings.Cut(spec, " -j ")
	return before
}
