package services

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/overrides"
)

func TestChangedItself(t *testing.T) {
	rules := func(port int32) *v1alpha1.ServiceProxyRules {
		return &v1alpha1.ServiceProxyRules{Spec: v1alpha1.ServiceProxyRulesSpec{Ports: []v1alpha1.ServicePort{{Port: port}}}}
	}
	for _, tt := range []struct {
		name           string
		stored, former *v1alpha1.ServiceProxyRules
		retained, want bool
	}{
		{name: "it is new", former: rules(80), want: true},
		{name: "it is the same", stored: rules(80), former: rules(80), retained: true},
		{name: "it is another one", stored: rules(80), former: rules(81), retained: true, want: true},
		{name: "it is given something else", stored: rules(80), former: rules(80)},
		{name: "and has changed as well", stored: rules(80), former: rules(81), want: true},
	} {
		if got := changedItself(tt.stored, tt.former, overrides.Shaping{Retained: tt.retained, Annotation: `{"overrides":{}}`}); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}

func TestChangedLately(t *testing.T) {
	metrics := metrics.New(prometheus.NewRegistry())
	m := NewMemory(metrics, func() {})
	cart := types.NamespacedName{Namespace: "shop", Name: "cart"}
	if m.changedLately(cart, controllertest.Noon) {
		t.Error("what is not known has changed")
	}
	m.wrote(cart, 1000, true, controllertest.Noon)
	m.wrote(cart, 1000, false, controllertest.Noon.Add(time.Second)) // by a policy
	if !m.changedLately(cart, controllertest.Noon.Add(settleTime-1)) || m.changedLately(cart, controllertest.Noon.Add(settleTime)) {
		t.Error("a change counts for another time than a minute")
	}
}
