package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestAPITroubleIsSaidOnceWithAdvice(t *testing.T) {
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
		failing := map[string]bool{}
		clk := clocktesting.NewFakePassiveClock(epoch)
		trouble := newAPITrouble(clk, funcr.New(func(_, args string) { log = append(log, args) }, funcr.Options{}),
			func(resource string, on bool) { failing[resource] = on })
		const r = "serviceproxyrules"
		trouble.watching(r)
		for range 5 {
			trouble.failed(context.Background(), r, tt.err)
		}
		if len(log) != 1 || !strings.Contains(log[0], tt.advice) || !strings.Contains(log[0], "rules in the kernel stay") || !failing[r] {
			t.Errorf("%v: log %q lacks %q, or is not one line; failing %v", tt.err, log, tt.advice, failing)
		}
		clk.SetTime(epoch.Add(time.Minute))
		trouble.failed(context.Background(), r, tt.err)
		trouble.watching(r)
		trouble.watching(r)
		if len(log) != 3 || failing[r] {
			t.Errorf("log %q, failing %v", log, failing)
		}
		stopped, cancel := context.WithCancel(context.Background())
		cancel()
		trouble.failed(stopped, r, tt.err)
		if len(log) != 3 {
			t.Errorf("it complains while stopping: %q", log[3:])
		}
	}
}
