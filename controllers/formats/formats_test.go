package formats

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// stuckReader is a cache whose lists block until they are released, as those of a deleted kind.
type stuckReader struct {
	client.Reader
	lists  int
	asked  chan struct{} // gets one for each list, unless nil
	let    chan struct{}
	heeds  bool    // lists end with the caller's context
	agents []int32 // the versions that the agent of the only node knows
}

func (r *stuckReader) List(ctx context.Context, into client.ObjectList, _ ...client.ListOption) error {
	r.lists++
	if r.asked != nil {
		r.asked <- struct{}{}
	}
	agents := slices.Clone(r.agents)
	var done <-chan struct{}
	if r.heeds {
		done = ctx.Done()
	}
	select {
	case <-r.let:
	case <-done:
		return ctx.Err()
	}
	rules := v1alpha1.NodeProxyRules{}
	rules.Status.Agent = &v1alpha1.AgentReport{FormatVersions: agents}
	into.(*v1alpha1.NodeProxyRulesList).Items = []v1alpha1.NodeProxyRules{rules}
	return nil
}

// The notification of a new term has the gate's lock, without which nothing is written and nothing
// stops, so it must not wait for a caller that reads the nodes.
func TestTermBeginsWhileNodesAreRead(t *testing.T) {
	reader := &stuckReader{let: make(chan struct{}), asked: make(chan struct{}, 2), agents: []int32{1}}
	f := New(reader, []int32{1, 2})
	answer := func() <-chan int32 {
		out := make(chan int32, 1)
		go func() {
			version, err := f.Current(t.Context())
			if err != nil {
				t.Error(err)
			}
			out <- version
		}()
		return out
	}
	former := answer()
	<-reader.asked
	begun := make(chan struct{})
	go func() { defer close(begun); f.Forget() }()
	select {
	case <-begun:
	case <-time.After(10 * time.Second):
		close(reader.let)
		t.Fatal("a term cannot begin before the read has ended")
	}
	reader.let <- struct{}{}
	if version := <-former; version != 1 {
		t.Errorf("the read returned %d", version)
	}
	if version, _ := f.known(); version != 0 {
		t.Error("the result of the former term counts")
	}
	reader.agents = []int32{1, 2}
	later := answer()
	reader.let <- struct{}{}
	if version := <-later; version != 2 {
		t.Errorf("in the new term %d", version)
	}
	if version, _ := f.known(); version != 2 {
		t.Errorf("known: %d", version)
	}
}

// TestConcurrentCallersReadOnce: one caller reads for all, and a canceled one does not wait for it.
func TestConcurrentCallersReadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := &stuckReader{let: make(chan struct{}), heeds: true, agents: []int32{1}}
		f := New(reader, []int32{1, 2})
		ctx, stop := context.WithCancel(t.Context())
		errs := make(chan error)
		ask := func() {
			_, err := f.Current(ctx)
			errs <- err
		}
		for range 5 {
			go ask()
		}
		synctest.Wait()
		stop()
		for range 5 {
			if err := <-errs; !errors.Is(err, context.Canceled) {
				t.Errorf("canceled: %v", err)
			}
		}
		ctx, reader.lists = t.Context(), 0
		for range 5 {
			go ask()
		}
		synctest.Wait()
		close(reader.let)
		for range 5 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if reader.lists != 1 {
			t.Errorf("%d reads, want 1", reader.lists)
		}
	})
}
