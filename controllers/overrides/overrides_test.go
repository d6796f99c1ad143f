package overrides

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
)

// While another controller leads, Services may be deleted that this one remembers: in its next term
// it knows only those that it has reconciled.
func TestOverridesInANewTerm(t *testing.T) {
	reader, list := controllertest.Stock(1, 3)
	o := New(reader, clocktesting.NewFakePassiveClock(controllertest.Noon))
	list[1].Namespace = list[0].Namespace   // the policy selects it, and not that of the last one
	before := &v1alpha1.ServiceProxyRules{} // they were there before the policy
	ask := func(i int) time.Duration {
		t.Helper()
		s, err := o.Shape(t.Context(), list[i], before)
		if err != nil {
			t.Fatal(err)
		}
		return s.Again
	}
	ask(0)
	ask(1)
	ask(2)
	o.keeps(client.ObjectKeyFromObject(list[2]))
	if len(o.services) != 3 || len(o.Keeping()) != 1 {
		t.Fatalf("remembered: %d Services, %d kept; this test proves nothing", len(o.services), len(o.Keeping()))
	}

	o.NewTerm()
	if len(o.services)+len(o.Keeping()) != 0 {
		t.Errorf("left: %d Services, %d kept", len(o.services), len(o.Keeping()))
	}
	if wait, want := ask(1), time.Second/overridesPerSecond; wait != want {
		t.Errorf("the only one that is left waits %s, want %s", wait, want)
	}
	if len(o.services) != 1 {
		t.Errorf("%d Services are known, want the one that was asked about", len(o.services))
	}
}
