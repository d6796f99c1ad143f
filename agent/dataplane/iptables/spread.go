package iptables

import (
	"hash/fnv"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// A port with more than flatAtMost endpoints has them in several chains, most of which have between
// half of partSize and partSize. A chain is only written as a whole, and a packet passes its rules one
// by one: a chain of 10,000 takes the kernel half a second for each change, in which no other change
// is written.
const (
	flatAtMost = 1500
	partSize   = 100
)

// policyChain spreads new connections evenly over endpoints: over parts of them by their size, and
// then within a part.
func (p *portPlan) policyChain(name string, list []endpointChain) {
	if p.flat || len(list) <= flatAtMost {
		w := p.spreadingChain(name)
		p.affinityRules(w, list)
		p.endpointRules(w, list)
		p.finish(w)
		return
	}
	parts := partsOf(list)
	affinity, targets := make([]string, len(parts)), make([]string, len(parts))
	for i, part := range parts {
		if len(part) == 0 {
			continue
		}
		number := strconv.Itoa(i)
		if p.svc.AffinitySeconds > 0 {
			affinity[i] = p.partName(name, "affinity "+number)
			w := p.newChain(affinity[i])
			w.inner = true
			p.affinityRules(w, part)
			p.finish(w)
		}
		targets[i] = p.partName(name, "part "+number)
		w := p.newChain(targets[i])
		w.inner = true
		p.endpointRules(w, part)
		p.finish(w)
	}
	w := p.spreadingChain(name)
	for _, chain := range affinity {
		if chain != "" {
			w.rule("-j " + chain)
		}
	}
	left := len(list)
	for i, part := range parts {
		if len(part) > 0 {
			w.rule(chance(len(part), left), "-j "+targets[i])
			left -= len(part)
		}
	}
	p.finish(w)
}

// partName is the name of a chain with a part of what another one leads to. It has the other's prefix,
// by which kube-proxy removes it.
func (p *portPlan) partName(of, part string) string {
	prefix := prefixCluster
	if of == p.local {
		prefix = prefixLocal
	}
	return prefix + chainHash(p.name, p.protocol, part)
}

// hasParts reports whether a Service has endpoints in parts.
func hasParts(s *dataplane.Service) bool {
	return slices.ContainsFunc(s.Ports, func(p dataplane.Port) bool { return max(len(p.Cluster), len(p.Local)) > flatAtMost })
}

// partsOf parts endpoints by their hashes, so that one that replaces another changes one or two parts.
// Only if their number changes, at 1,600, 3,200 and so on, it parts all anew. If hashes make a part too
// long, it parts by order, in which one endpoint shifts those behind it.
func partsOf(list []endpointChain) [][]endpointChain {
	parts := make([][]endpointChain, 1<<bits.Len(uint(len(list)/partSize)))
	for _, ep := range list {
		i := partIndex(ep.AddrPort, len(parts))
		parts[i] = append(parts[i], ep)
		if len(parts[i]) > 4*partSize {
			return slices.Collect(slices.Chunk(list, partSize))
		}
	}
	return parts
}

func partIndex(ep netip.AddrPort, parts int) int {
	hash := fnv.New32a()
	address := ep.Addr().As16()
	hash.Write(address[:])
	hash.Write([]byte{byte(ep.Port() >> 8), byte(ep.Port())})
	return int(mix(uint64(hash.Sum32())) % uint64(parts)) //nolint:gosec // few parts
}

// spreadingChain begins the chain that traffic to a policy's endpoints comes to.
func (p *portPlan) spreadingChain(name string) *chainWriter {
	w := p.newChain(name)
	if name == p.internal {
		p.masqueradeRule(w)
	}
	return w
}

// affinityRules lead a client to the endpoint that it has used before.
func (p *portPlan) affinityRules(w *chainWriter, list []endpointChain) {
	if p.svc.AffinitySeconds == 0 {
		return
	}
	seconds := strconv.Itoa(int(p.svc.AffinitySeconds))
	for _, ep := range list {
		w.rule(p.endpointComment(p.name+" -> "+ep.String()),
			"-m recent --name "+ep.name+" --rcheck --seconds "+seconds+" --reap", "-j "+ep.name)
	}
}

// endpointRules take each endpoint equally often.
func (p *portPlan) endpointRules(w *chainWriter, list []endpointChain) {
	for i, ep := range list {
		w.rule(p.endpointComment(p.name+" -> "+ep.String()), chance(1, len(list)-i), "-j "+ep.name)
	}
}

// chance matches what some of left endpoints take of the traffic that the ones before them left.
func chance(some, left int) string {
	if some == left {
		return ""
	}
	return "-m statistic --mode random --probability " + strconv.FormatFloat(float64(some)/float64(left), 'f', 10, 64)
}
