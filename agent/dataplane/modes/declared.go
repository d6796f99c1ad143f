package modes

import (
	"math"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// declarations are those of all modes, by precedence.
var declarations = []dataplane.Declaration{iptables.Declaration(), ipvs.Declaration()}

// Declarations returns those of all modes, by precedence.
func Declarations() []dataplane.Declaration { return slices.Clone(declarations) }

// Of returns the Declaration of a mode. An unknown one has no properties and comes last.
func Of(mode v1alpha1.ProxyMode) dataplane.Declaration {
	for _, d := range declarations {
		if d.Mode == mode {
			return d
		}
	}
	return dataplane.Declaration{Mode: mode, Precedence: math.MaxInt}
}

// Baseline returns the mode that every node is expected to run.
func Baseline() v1alpha1.ProxyMode {
	return declarations[slices.IndexFunc(declarations, func(d dataplane.Declaration) bool { return d.Baseline })].Mode
}

// Fallbacks returns the modes to run, in order, if a node cannot run the one of its settings.
func Fallbacks(settings *v1alpha1.ProxySettings) []v1alpha1.ProxyMode {
	if *settings.Fallback == v1alpha1.FallbackNone {
		return nil
	}
	return []v1alpha1.ProxyMode{v1alpha1.ProxyMode(*settings.Fallback)}
}
