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

// stuckReader is a cache whose lists wait until they are let go, as of a kind
// that does not exist any more.
type stuckReader struct {
	client.Reader
	lists  int
	asked  chan struct{} // gets one for each list, unless nil
	let    chan struct{}
	heeds  bool    // the context of who asks
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

// TestATermBeginsWhileSomebodyLooks at the nodes: whoever says that it begins
// holds the gate's lock, without which nothing is written and nothing stops.
func TestATermBeginsWhileSomebodyLooks(t *testing.T) {
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
		t.Fatal("a term cannot begin before the look has ended")
	}
	reader.let <- struct{}{}
	if version := <-former; version != 1 {
		t.Errorf("what was seen is %d", version)
	}
	if version, _ := f.known(); version != 0 {
		t.Error("what was seen in the former term counts")
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

// TestManyAskForTheFormat: one looks for all, and whoever is told to stop does not
// wait for it.
func TestManyAskForTheFormat(t *testing.T) {
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
				t.Errorf("told to stop: %v", err)
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
			t.Errorf("%d looks", reader.lists)
		}
	})
}
