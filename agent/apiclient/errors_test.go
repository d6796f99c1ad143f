package apiclient

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
)

func TestAPIErrorsAreLoggedOnceWithAdvice(t *testing.T) {
	resource := schema.GroupResource{Group: "nodeproxy.io", Resource: "serviceproxyrules"}
	for _, tt := range []struct {
		err    error
		advice string
	}{
		{apierrors.NewNotFound(resource, ""), "install.yaml of this release, or its config/crd/bases"},
		{apierrors.NewUnauthorized("no"), "--kubeconfig"},
		{apierrors.NewForbidden(resource, "", errors.New("no")), "roles and their bindings in config/rbac"},
		{errors.New("connection refused"), "--api-server"},
	} {
		var log []string
		clk := clocktesting.NewFakeClock(agenttest.Epoch)
		registry := prometheus.NewRegistry()
		problems := NewErrors(clk, funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{}), NewMetrics(registry))
		failing := func() bool { return failingWatches(t, registry) == 1 }
		const r = "serviceproxyrules"
		problems.Watching(r)
		for range 5 {
			problems.Failed(context.Background(), r, tt.err)
		}
		if len(log) != 1 || !strings.Contains(log[0], tt.advice) || !strings.Contains(log[0], "rules in the kernel stay") || !failing() {
			t.Errorf("%v: log %q lacks %q, or is not one line; failing %v", tt.err, log, tt.advice, failing())
		}
		clk.SetTime(agenttest.Epoch.Add(time.Minute))
		problems.Failed(context.Background(), r, tt.err)
		problems.Watching(r)
		problems.Watching(r)
		if len(log) != 3 || failing() {
			t.Errorf("log %q, failing %v", log, failing())
		}
		stopped, cancel := context.WithCancel(context.Background())
		cancel()
		problems.Failed(stopped, r, tt.err)
		if len(log) != 3 {
			t.Errorf("it complains while stopping: %q", log[3:])
		}
	}
}

// failingWatches counts the resources that the metrics show as failing.
func failingWatches(t *testing.T, registry *prometheus.Registry) int {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, family := range families {
		if family.GetName() != "nodeproxy_agent_watch_failing" {
			continue
		}
		for _, m := range family.GetMetric() {
			count += int(m.GetGauge().GetValue())
		}
	}
	return count
}
