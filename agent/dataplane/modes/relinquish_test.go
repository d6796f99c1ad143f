package modes

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
)

// preceding is a mode that no other proxy takes over.
type preceding struct {
	*dataplanetest.Fake
	stuck error
}

func (p preceding) Relinquish(ctx context.Context, serves bool) (string, error) {
	if serves && p.stuck == nil {
		return "", p.Cleanup(ctx, dataplane.CleanupOptions{})
	}
	return strings.Join(p.Services(), " "), p.stuck
}

// TestRelinquish: of the modes that no other proxy takes over.
func TestRelinquish(t *testing.T) {
	n := newNode(t)
	p := &preceding{Fake: n.kernel[servers]}
	precedes := Of(servers)
	precedes.PrecedesOthers = true
	n.plane = New(Plane{Of(rules), n.kernel[rules]}, Plane{precedes, p})
	n.apply(n.ruleset(servers))
	expect := func(serves bool, want string, wantErr error) {
		t.Helper()
		if remain, err := n.plane.Relinquish(t.Context(), serves); remain != want || !errors.Is(err, wantErr) {
			t.Errorf("remains %q, %v; want %q, %v", remain, err, want, wantErr)
		}
		if n.plane.Uses(servers) != (want != "") {
			t.Errorf("uses the mode: %v", n.plane.Uses(servers))
		}
	}
	expect(false, "shop/cart", nil)
	p.stuck = errors.New("stuck")
	expect(true, "shop/cart", p.stuck)
	p.stuck = nil
	expect(true, "", nil)
	n.apply(n.ruleset(rules))
	expect(true, "", nil)
	n.expect("the other mode stays", held{rules: "shop/cart"})
}
