package manifests_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestExternalIPsSample: with the sample no user can add external IPs, and existing ones
// stay.
func TestExternalIPsSample(t *testing.T) {
	sample := configDirectory("samples", "externalips.yaml")
	ns := newNamespace(t, "externalips")
	had := openService(ns)
	had.Name, had.Spec.ExternalIPs = "had", []string{"198.51.100.7", "198.51.100.8"}
	create(t, server.client, had)
	t.Cleanup(func() {
		if out, err := kubectl(context.Background(), "delete", "--ignore-not-found", "-f", sample); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	if out, err := kubectl(t.Context(), "apply", "-f", sample); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	eventually(t, func(ctx context.Context) error { // a policy counts a moment after it is made
		added := openService(ns)
		added.Name, added.Spec.ExternalIPs = "added", []string{"198.51.100.9"}
		err := server.client.Create(ctx, added, client.DryRunAll)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "spec.externalIPs cannot be added") {
			return fmt.Errorf("not denied: %w", errors.Join(err, errors.New("want Forbidden")))
		}
		return nil
	})
	change := func(what string, denied bool, ips ...string) {
		changed := had.DeepCopy()
		changed.Spec.ExternalIPs = ips
		changed.Labels = map[string]string{"changed": "yes"}
		if err := server.client.Update(t.Context(), changed, client.DryRunAll); apierrors.IsForbidden(err) != denied || !denied && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	change("all stay", false, had.Spec.ExternalIPs...)
	change("one goes", false, "198.51.100.8")
	change("all go", false)
	change("another one comes", true, "198.51.100.7", "198.51.100.9")
	without := openService(ns)
	without.Name = "without"
	if err := server.client.Create(t.Context(), without, client.DryRunAll); err != nil {
		t.Errorf("a Service without external IPs: %v", err)
	}
}
