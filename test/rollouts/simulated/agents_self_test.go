package simulated

import (
	"fmt"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestSimulatedAgents gives nodes settings by hand, and looks at what their agents
// report.
func TestSimulatedAgents(t *testing.T) {
	t.Parallel()
	w := emptyWorld(t)
	in := func(mode v1alpha1.ProxyMode, enforcement v1alpha1.Enforcement, revision string) v1alpha1.NodeProxyRulesSpec {
		return v1alpha1.NodeProxyRulesSpec{
			FormatVersion: 1, SettingsRevision: revision,
			Settings: *v1alpha1.CompleteSettings(&v1alpha1.ProxySettings{Mode: &mode, Enforcement: &enforcement}),
		}
	}
	tests := []struct {
		name      string
		behavior  behavior
		second    v1alpha1.NodeProxyRulesSpec
		isApplied bool
		available bool
		reason    string
	}{
		{"works", always(works), in(v1alpha1.ModeIPVS, v1alpha1.Enforce, "2"), true, true, "Programmed True Programmed"},
		{"slow", slow(50 * time.Millisecond), in(v1alpha1.ModeIPVS, v1alpha1.Enforce, "2"), true, true, "Programmed True Programmed"},
		{"fails", with(v1alpha1.ModeIPVS, fails), in(v1alpha1.ModeIPVS, v1alpha1.Enforce, "2"), false, false, "Programmed False Failed"},
		{"rejects", with(v1alpha1.ModeIPVS, rejects), in(v1alpha1.ModeIPVS, v1alpha1.Enforce, "2"), false, false, "Programmed False Failed"},
		{"breaks", with(v1alpha1.ModeIPVS, breaks), in(v1alpha1.ModeIPVS, v1alpha1.Enforce, "2"), true, false, "Programmed False Failed"},
		{"rejects-one", with(v1alpha1.ModeIPVS, rejectsOne), in(v1alpha1.ModeIPVS, v1alpha1.Enforce, "2"), true, true, "Programmed True SomeServicesRejected"},
		{"conflicts", with(v1alpha1.ModeIPVS, conflicts), in(v1alpha1.ModeIPVS, v1alpha1.Enforce, "2"), false, false, "Programmed False ConflictingProxy"},
		{"audits", always(works), in(v1alpha1.ModeIPTables, v1alpha1.Audit, "2"), true, true, "Programmed True AuditInSync"},
		{"differs", always(differs), in(v1alpha1.ModeIPTables, v1alpha1.Audit, "2"), true, true, "Programmed False AuditDiffers"},
	}
	carries := func(name, revision, reason string) {
		w.await(name+" reports "+reason+" for "+revision, func() bool {
			r := find[*v1alpha1.NodeProxyRules](w.history, name)
			return r != nil && r.Spec.SettingsRevision == revision && programmedReason(r) == reason
		})
	}
	for _, tt := range tests {
		w.fleet.start(tt.name, tt.behavior)
		w.create(&v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: tt.name}, Spec: in(v1alpha1.ModeIPTables, v1alpha1.Enforce, "1")})
	}
	for _, tt := range tests {
		carries(tt.name, "1", "Programmed True Programmed")
		rules := find[*v1alpha1.NodeProxyRules](w.history, tt.name)
		edit(w, rules, func(r *v1alpha1.NodeProxyRules) { r.Spec = tt.second })
	}
	for _, tt := range tests {
		w.await(fmt.Sprintf("%s reports %s for 2, applied: %t, available: %t", tt.name, tt.reason, tt.isApplied, tt.available), func() bool {
			r := find[*v1alpha1.NodeProxyRules](w.history, tt.name)
			return r != nil && r.Spec.SettingsRevision == "2" && programmedReason(r) == tt.reason && isApplied(r) == tt.isApplied && available(r) == tt.available
		})
		lease := &coordinationv1.Lease{}
		if err := w.api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: v1alpha1.AgentLeaseName(tt.name)}, lease); err != nil {
			t.Error(err)
		} else if !strings.Contains(*lease.Spec.HolderIdentity, tt.name) {
			t.Errorf("the Lease of %s is held by %s", tt.name, *lease.Spec.HolderIdentity)
		}
	}
	w.fleet.behave(always(works), "fails")
	carries("fails", "2", "Programmed True Programmed")
}
