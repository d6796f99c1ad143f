package dataplane_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
)

func rulesets(families ...dataplane.Family) map[dataplane.Family]*dataplane.Ruleset {
	name := dataplane.ServiceName{Namespace: "shop", Name: "cart"}
	out := map[dataplane.Family]*dataplane.Ruleset{}
	for _, family := range families {
		out[family] = &dataplane.Ruleset{
			Full: true, Prune: true, Dirty: map[dataplane.ServiceName]struct{}{name: {}},
			Services: map[dataplane.ServiceName]*dataplane.Service{name: {Name: name, Ports: []dataplane.Port{{Port: 80}}}},
		}
	}
	return out
}

func TestFanoutKeepsFamiliesApart(t *testing.T) {
	ctx := context.Background()
	v4, v6 := dataplanetest.NewFake(), dataplanetest.NewFake()
	fanout := dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv6: v6, dataplane.IPv4: v4})
	if diff := cmp.Diff([]dataplane.Family{dataplane.IPv4, dataplane.IPv6}, fanout.Families()); diff != "" {
		t.Error(diff)
	}

	locked := errors.New("locked")
	v4.Fail(locked)
	outcomes := fanout.Apply(ctx, rulesets(dataplane.IPv4, dataplane.IPv6))
	if !errors.Is(outcomes[dataplane.IPv4].Err, locked) || outcomes[dataplane.IPv6].Err != nil {
		t.Errorf("outcomes %v", outcomes)
	}
	if len(v4.Services()) != 0 || len(v6.Services()) != 1 {
		t.Errorf("kernels have %v and %v", v4.Services(), v6.Services())
	}
	err := dataplane.JoinErrors(outcomes)
	if !errors.Is(err, locked) || err.Error() != "IPv4: locked" {
		t.Errorf("joined: %v", err)
	}

	v4.Fail(nil)
	v6.Lack("no IPv6 in this kernel")
	outcomes = fanout.Apply(ctx, rulesets(dataplane.IPv4, dataplane.IPv6))
	err = dataplane.JoinErrors(outcomes)
	if !errors.Is(err, dataplane.ErrUnsupported) || !strings.HasPrefix(err.Error(), "IPv6: no IPv6 in this kernel") {
		t.Errorf("joined: %v", err)
	}
	if len(v4.Services()) != 1 {
		t.Errorf("IPv4 holds %v", v4.Services())
	}

	v4.Remove("shop", "cart")
	differences := fanout.Verify(ctx, rulesets(dataplane.IPv4), dataplane.VerifyOptions{})
	if len(differences) != 1 || differences[dataplane.IPv4].Value.Count != 1 {
		t.Errorf("differences %v", differences)
	}
	if err := fanout.Cleanup(ctx, dataplane.CleanupOptions{}); err != nil || len(v6.Services()) != 0 {
		t.Errorf("cleanup: %v, IPv6 holds %v", err, v6.Services())
	}
}

func TestFanoutWithoutTheFamily(t *testing.T) {
	fanout := dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: dataplanetest.NewFake()})
	if err := dataplane.JoinErrors(fanout.Apply(context.Background(), rulesets(dataplane.IPv6))); !errors.Is(err, dataplane.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
	if err := dataplane.JoinErrors(fanout.Apply(context.Background(), nil)); err != nil {
		t.Errorf("nothing to apply: %v", err)
	}
}

// The race detector reports whether the outcomes are written one by one.
func TestFanoutWithoutDataplaneForAFamily(t *testing.T) {
	fanout := dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: dataplanetest.NewFake()})
	for range 100 { // families come in any order
		outcomes := fanout.Apply(context.Background(), rulesets(dataplane.IPv4, dataplane.IPv6))
		if outcomes[dataplane.IPv4].Err != nil || !errors.Is(outcomes[dataplane.IPv6].Err, dataplane.ErrUnsupported) {
			t.Fatalf("outcomes %v", outcomes)
		}
	}
}

// plain is a data plane that follows nothing.
type plain struct{ dataplane.Dataplane }

func TestFanoutFollowsEachFamily(t *testing.T) {
	six := dataplanetest.NewFake()
	fanout := dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: plain{dataplanetest.NewFake()}, dataplane.IPv6: six})
	ctx, cancel := context.WithCancel(t.Context())
	six.ChangeFacts()
	var changed []dataplane.Family
	fanout.Follow(ctx, func(f dataplane.Family) { changed = append(changed, f); cancel() })
	if diff := cmp.Diff([]dataplane.Family{dataplane.IPv6}, changed); diff != "" {
		t.Error(diff)
	}
}
