package iptables

import (
	"slices"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
)

// oldPrograms do not know MASQUERADE --random-fully.
type oldPrograms struct{ modeled }

func (oldPrograms) randomFully() bool { return false }

// TestFixedRulesWithOldPrograms: what the programs do not know is neither written nor
// missed.
func TestFixedRulesWithOldPrograms(t *testing.T) {
	model := iptablesmodel.NewKernel()
	k := NewFixedRules(serversMode(), dataplane.IPv4, Options{Modes: twoModes(), Model: model})
	k.kernel = oldPrograms{modeled{model: model}}
	rules := fixedrules.Postrouting("0x4000", true)
	want := fixedrules.Rules{
		Chains: []fixedrules.Chain{{Table: "nat", Name: "KUBE-POSTROUTING", Rules: rules}},
		Jumps:  []fixedrules.Jump{{Table: "nat", Chain: "POSTROUTING", Rule: "-j KUBE-POSTROUTING"}},
	}
	if changed, err := k.Apply(t.Context(), want); err != nil || !changed {
		t.Fatalf("changed: %t, %v", changed, err)
	}
	if got, _ := model.Chain("nat", "KUBE-POSTROUTING"); !slices.Equal(got, fixedrules.Postrouting("0x4000", false)) {
		t.Errorf("%q", got)
	}
	if state, err := k.Compare(t.Context(), want); err != nil || len(state.Findings) > 0 {
		t.Errorf("%+v, %v", state.Findings, err)
	}
	if rules[2] != fixedrules.Postrouting("0x4000", true)[2] {
		t.Errorf("what was asked for is changed: %q", rules)
	}
}
