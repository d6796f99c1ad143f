package agent

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestRemovalOutlivesARestart of the agent, whatever comes first.
func TestRemovalOutlivesARestart(t *testing.T) {
	former := func(r *rig) *v1alpha1.NodeProxyRules {
		o := r.Node()
		o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRemoved, Message: "as before"}}
		return o
	}
	tests := []struct {
		name string
		see  func(r *rig)
		want string // that the kernel has after a minute
		text string
	}{
		{"the NodeProxy is being deleted", func(r *rig) { r.SetRules(r.Node()); after(time.Second); r.SetProxy(deleted(v1alpha1.RemovalCleanup)) }, "", "removed from this node"},
		{"and it was done", func(r *rig) { r.SetRules(former(r)); r.SetProxy(deleted(v1alpha1.RemovalCleanup)) }, "", "as before"},
		{"and it was done, seen later", func(r *rig) { r.SetProxy(deleted(v1alpha1.RemovalCleanup)); r.SetRules(former(r)) }, "", "as before"},
		{"it is gone", func(r *rig) { r.SetRules(former(r)); r.SetProxy(nil) }, "", "as before"},
		{"it is gone, seen first", func(r *rig) { r.SetProxy(nil); r.SetRules(former(r)) }, "", "as before"},
		{"there is a new one", func(r *rig) { r.SetRules(former(r)); after(time.Second); r.SetProxy(proxy("shop.a")) }, "shop/a", "desired state is programmed"},
		{"there is a new one, seen first", func(r *rig) { r.SetProxy(proxy("shop.a")); r.SetRules(former(r)) }, "shop/a", "desired state is programmed"},
		{"it cannot be read", func(r *rig) { r.SetRules(r.Node()) }, "shop/a", "status.inventory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, kernel, _ := newAgent(t, (&answers{list: []string{""}}).probe)
				r := &rig{Store: a.store, t: t, Objects: agenttest.Objects{Version: 10}}
				ctx, stop := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { a.own(ctx) })
				wg.Go(func() { a.loop.Run(ctx) })
				r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1)})
				tt.see(r)
				a.changed()
				after(time.Minute)
				c := status.ProgrammedCondition(a.refresh())
				if got := strings.Join(kernel.Services(), " "); got != tt.want || !strings.Contains(c.Message, tt.text) {
					t.Errorf("the kernel has %q, and %s: %s; want %q, …%s…", got, c.Reason, c.Message, tt.want, tt.text)
				}
				if tt.want == "" && kernel.Writes() != 0 {
					t.Error("rules were written for a moment")
				}
				stop()
				wg.Wait()
			})
		})
	}
}

func TestRemovalTakesTheCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newRestartable(t)
		a, r := e.agent(here)
		e.fill(r)
		hold(t, a)
		mustSync(t, a)
		stop := loops(t, a)
		after(15 * time.Second)
		if _, err := os.Stat(e.file()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(e.file()+".tmp", []byte("cut off"), 0o600); err != nil {
			t.Fatal(err)
		}
		r.SetProxy(deleted(v1alpha1.RemovalCleanup))
		r.ClearRemoval("", true)
		mustSync(t, a)
		after(10*time.Minute + 5*time.Second)
		for _, file := range []string{e.file(), e.file() + ".tmp"} {
			if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", file, err)
			}
		}
		r.SetProxy(proxy("shop.a", "shop.b"))
		after(20 * time.Second)
		if _, err := os.Stat(e.file()); err != nil {
			t.Errorf("no checkpoint of the next installation is written: %v", err)
		}
		stop()
	})
}

func TestRemovalNamesAFileThatStays(t *testing.T) {
	e := newRestartable(t)
	a, r := e.agent(here)
	e.fill(r)
	hold(t, a)
	if err := os.MkdirAll(e.file()+"/full", 0o700); err != nil { // a directory that is not empty cannot be removed
		t.Fatal(err)
	}
	r.SetProxy(deleted(v1alpha1.RemovalCleanup))
	r.ClearRemoval("", true)
	if err := a.sync(t.Context()); err == nil {
		t.Fatal("no error")
	}
	c := status.ProgrammedCondition(a.refresh())
	if c.Reason != "Failed" || !strings.Contains(c.Message, e.file()) {
		t.Errorf("%s: %s", c.Reason, c.Message)
	}
}

// TestFirstOwnershipDoesNotWaitForACheck: whatever is listed last, it begins at once.
func TestFirstOwnershipDoesNotWaitForACheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, _ := newAgent(t, (&answers{list: []string{""}}).probe)
		r := &rig{Store: a.store, t: t, Objects: agenttest.Objects{Version: 10}}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { a.own(ctx) })
		r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1)})
		r.SetRules(r.Node())
		a.changed()
		after(10 * time.Millisecond)
		if a.owner.MayWrite() {
			t.Error("begun before it is known whether there is a NodeProxy")
		}
		r.SetProxy(proxy("shop.a"))
		a.changed()
		after(10 * time.Millisecond)
		if !a.owner.MayWrite() {
			t.Error("not begun at once")
		}
		stop()
		wg.Wait()
	})
}
