package connections

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// met is what a client has met.
type met struct {
	rejection   string // REJECT or DROP; empty: answers
	endpoints   []string
	masqueraded bool
}

// agrees checks that trace, by what was rendered, predicts of an attempt what the
// client has met. What no rule covers it leaves to the owner of the address. Here there
// is none, which clients see as a rejection.
func (l *lab) agrees(from, protocol string, source netip.Addr, to netip.AddrPort, has met) {
	l.Helper()
	set, err := combine.Whole(&l.world.Rules.Node, l.world.Rules.Services, l.family)
	if err != nil {
		l.Fatal(err)
	}
	result, err := tracer.New(set, l.node2).Trace(l.Context(), tracer.Packet{
		Protocol: v1alpha1.Protocol(strings.ToUpper(protocol)), Source: source, Destination: to,
	})
	if err != nil {
		l.Fatal(err)
	}
	l.compared++
	var (
		predicted met
		ways      []string
	)
	for i := range result.Outcomes {
		o := &result.Outcomes[i]
		ways = append(ways, strings.Join(o.Via(), " → "))
		switch o.Fate {
		case tracer.Delivered:
			predicted.endpoints = append(predicted.endpoints, l.nameOf(o.Endpoint.Addr()))
			// What a client sees of a source that the kernel has chosen proves nothing.
			if masqueraded := o.Masqueraded || !source.IsValid(); i == 0 || masqueraded != has.masqueraded {
				predicted.masqueraded = masqueraded
			}
		case tracer.Rejected, tracer.Dropped:
			predicted.rejection = string(o.Fate)
		default:
			predicted.rejection = "REJECT"
			l.compared-- // trace cannot predict that
		}
	}
	slices.Sort(predicted.endpoints)
	if predicted.rejection != has.rejection || predicted.masqueraded != has.masqueraded || !slices.Equal(predicted.endpoints, has.endpoints) {
		l.Errorf("%s → %s %s: the client has met %+v, trace predicts %+v: %s", from, protocol, to, has, predicted, strings.Join(ways, "; "))
	}
}

// nameOf is the name of an endpoint.
func (l *lab) nameOf(a netip.Addr) string {
	for name, is := range map[string]netip.Addr{"a": l.plan.a, "b": l.plan.b, "r": l.plan.r} {
		if is == a {
			return name
		}
	}
	return a.String()
}
