package ipvs

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// until waits until f returns nil.
func until(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	if err := install.Until(t.Context(), limit, f); err != nil {
		t.Fatal(err)
	}
}

// answers waits until one of the given servers answers a new connection; any if
// none is given.
func answers(t *testing.T, from *cluster.Place, network, address string, servers ...string) {
	t.Helper()
	until(t, func(ctx context.Context) error { return answer(ctx, from, network, address, servers...) })
}

// answer returns nil if one of the given servers answers a new connection. It does
// not wait long: a connection that began before there were rules never meets them.
func answer(ctx context.Context, from *cluster.Place, network, address string, servers ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	got, err := from.Dial(ctx, network, address)
	if err == nil && len(servers) > 0 && !slices.Contains(servers, got.Server) {
		err = fmt.Errorf("%s answers at %s, want %v", got, address, servers)
	}
	return err
}
