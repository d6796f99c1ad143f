package servicepolicies

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/overrides"
)

// stockedClient reads from a controllertest.Stock, and accepts every status.
type stockedClient struct {
	client.Client
	reader client.Reader
}

// Get implements client.Client.
func (c *stockedClient) Get(ctx context.Context, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
	return c.reader.Get(ctx, key, into, o...)
}

// List implements client.Client.
func (c *stockedClient) List(ctx context.Context, list client.ObjectList, o ...client.ListOption) error {
	return c.reader.List(ctx, list, o...)
}

// Status implements client.Client.
func (c *stockedClient) Status() client.SubResourceWriter { return statuses{} }

type statuses struct{ client.SubResourceWriter }

// Update implements client.SubResourceWriter.
func (statuses) Update(context.Context, client.Object, ...client.SubResourceUpdateOption) error {
	return nil
}

// Services that retain their overrides are reconciled again whenever nodes reject something
// else than before, even if the halt came and went between two passes.
func TestServicesWithFormerOverridesAreReconciledAgain(t *testing.T) {
	reader, _ := controllertest.Stock(1, 1)
	m := metrics.New(prometheus.NewRegistry())
	clk, resumed := clocktesting.NewFakeClock(controllertest.Noon), 0
	o := overrides.New(reader, clk)
	r := &Reconciler{
		Client: &stockedClient{reader: reader}, Clock: clk, Metrics: m, Overrides: o, Resume: func() { resumed++ },
		Events: events.NewRecorder(events.NewQueue(leader.Always{}, nil, clk, m), clk),
	}
	survey := func(when string, want int) {
		t.Helper()
		clk.Step(interval)
		if _, err := r.Reconcile(t.Context(), ctrl.Request{}); err != nil {
			t.Fatal(err)
		}
		if resumed != want {
			t.Errorf("%s: reconciled again %d times, want %d", when, resumed, want)
		}
	}
	survey("initially", 0)
	survey("nothing has happened", 0)
	o.RejectionsChanged() // a node rejects a Service,
	o.RejectionsChanged() // and does not any more
	survey("a halt has come and gone", 1)
	survey("nothing has happened since", 1)
}
