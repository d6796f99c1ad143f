package nftables

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
)

// chainsPart is the part of busy.during for chains.
const chainsPart = "(chains)"

// busy is a kernel in which other programs commit while a part of the table is listed: a set, or the chains.
type busy struct {
	kernel
	// during is called after a part was listed for the nth time. It reports whether a batch was committed.
	during func(part string, n int) bool
	dumps  map[string]int
}

func (k *busy) listed(part string, err error) error {
	k.dumps[part]++
	if err == nil && k.during(part, k.dumps[part]) {
		return nft.ErrInterrupted
	}
	return err
}

func (k *busy) Chains(t nft.Table) ([]nft.Chain, error) {
	out, err := k.kernel.Chains(t)
	return out, k.listed(chainsPart, err)
}

func (k *busy) Elements(t nft.Table, set string, yield func(*nft.Element)) error {
	return k.listed(set, k.kernel.Elements(t, set, yield))
}

// TestInterruptedListing: only the part that was interrupted is listed again, and one that is interrupted
// each time counts unless it changes.
func TestInterruptedListing(t *testing.T) {
	for name, c := range map[string]struct {
		part  string
		owned bool
		// during reports whether the nth listing of the part is interrupted.
		during func(r *rig, n int) bool
		want   int // listings of the part
		fails  bool
	}{
		"once":                               {setEndpoints, false, func(_ *rig, n int) bool { return n == 1 }, 2, false},
		"always, by changes of other tables": {setEndpoints, false, func(*rig, int) bool { return true }, 2, false},
		"a table with an owner":              {setEndpoints, true, func(*rig, int) bool { return true }, 1, false},
		"chains of a table with an owner":    {chainsPart, true, func(*rig, int) bool { return true }, 2, false},
		"always, by changes of the set": {setEndpoints, false, func(r *rig, n int) bool {
			r.nft(fmt.Sprintf("add element ip nodeproxy endpoints { 192.0.2.99 . tcp . 80 . %d : 192.0.2.99 . 80 }", n))
			return true
		}, listTries, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if c.owned && !r.own() {
				t.Skip("the kernel has no table flags owner and persist")
			}
			r.set(web())
			r.apply()
			k := &busy{kernel: r.kernel, dumps: map[string]int{}}
			k.during = func(part string, n int) bool { return part == c.part && c.during(r, n) }
			r.kernel = k
			d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Audit: true})
			switch {
			case !c.fails && (err != nil || d.Count > 0):
				t.Errorf("%d differences: %q, %v", d.Count, d.Examples, err)
			case c.fails && (!errors.Is(err, nft.ErrInterrupted) || !strings.Contains(err.Error(), "list set endpoints of table nodeproxy")):
				t.Errorf("the error does not name the set: %v", err)
			}
			for part, n := range k.dumps {
				if part == c.part && n != c.want || part != c.part && n > 1 {
					t.Errorf("%s: listed %d times", part, n)
				}
			}
		})
	}
}

// TestBusyWriter: a program that never stops changing another table prevents neither a comparison nor a full
// pass.
func TestBusyWriter(t *testing.T) {
	r, _, _ := filled(t, 1000, 10)
	k := &disturbed{kernel: r.kernel}
	r.kernel = k
	other, err := nft.Open() // in the namespace of this thread
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	t.Cleanup(func() {
		close(stop)
		if err := errors.Join(<-done, other.Close()); err != nil {
			t.Error(err)
		}
	})
	go func() {
		theirs := nft.Table{Family: unix.NFPROTO_IPV4, Name: "other"}
		var b nft.Batch
		b.AddTable(theirs, "", false)
		b.DeleteTable(theirs)
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := other.Commit(&b, 0); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 3 {
		if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Audit: true}); err != nil || d.Count > 0 {
			t.Errorf("%d differences: %q, %v", d.Count, d.Examples, err)
		}
		r.rules.Full = true
		r.set(numbered(1, 9))
		r.apply()
	}
	if k.times == 0 {
		t.Error("nothing was written during any listing: this proves nothing")
	}
}

// disturbed counts the listings of sets during which another program has written.
type disturbed struct {
	kernel
	times int
}

func (k *disturbed) Elements(t nft.Table, set string, yield func(*nft.Element)) error {
	before, err := k.kernel.Generation()
	if err != nil {
		return err
	}
	if err := k.kernel.Elements(t, set, yield); err != nil {
		return err
	}
	after, err := k.kernel.Generation()
	if after != before {
		k.times++
	}
	return err
}
