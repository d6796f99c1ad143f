package iptables

import (
	"encoding/binary"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// attribute is one of a netlink message.
func attribute(kind uint16, value string) []byte { return nlattr.Append(nil, kind, []byte(value)) }

// event is a message of nf_tables.
func event(kind, family byte, port uint32, attributes ...[]byte) []byte {
	body := []byte{family, 0, 0, 0}
	for _, a := range attributes {
		body = append(body, a...)
	}
	out := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	out = binary.NativeEndian.AppendUint16(out, unix.NFNL_SUBSYS_NFTABLES<<8|uint16(kind))
	out = append(out, make([]byte, 6)...)
	return append(binary.NativeEndian.AppendUint32(out, port), body...)
}

func generationEvent(generation, port uint32) []byte {
	number := func(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }
	return event(unix.NFT_MSG_NEWGEN, 0, port, attribute(unix.NFTA_GEN_ID, number(generation)),
		attribute(unix.NFTA_GEN_PROC_PID, number(4711)), attribute(unix.NFTA_GEN_PROC_NAME, "iptables\x00"))
}

func ruleEvent(kind byte, in, chain, expressions string) []byte {
	attributes := [][]byte{attribute(unix.NFTA_RULE_TABLE, in+"\x00"), attribute(unix.NFTA_RULE_CHAIN, chain+"\x00"), attribute(3, "12345678")}
	if expressions != "" {
		attributes = append(attributes, attribute(unix.NFTA_RULE_EXPRESSIONS|0x8000, expressions))
	}
	return event(kind, unix.AF_INET, 7, attributes...)
}

func chainEvent(kind byte, in, chain string) []byte {
	return event(kind, unix.AF_INET, 7, attribute(unix.NFTA_CHAIN_TABLE, in+"\x00"), attribute(unix.NFTA_CHAIN_NAME, chain+"\x00"))
}

// TestEventsThatTouchOurs: what counts is what is ours, and that alone.
func TestEventsThatTouchOurs(t *testing.T) {
	const added, deleted = unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE
	jump := func(to string) string { return "....immediate....jump....." + to + "\x00\x00" }
	table := func(kind byte, name string) []byte {
		return event(kind, unix.AF_INET, 7, attribute(unix.NFTA_TABLE_NAME, name+"\x00"))
	}
	six := ruleEvent(deleted, "nat", chainServices, jump("x"))
	six[unix.SizeofNlMsghdr] = unix.AF_INET6
	for name, tt := range map[string]struct {
		event []byte
		want  bool
	}{
		"a rule deleted from a shared chain":          {ruleEvent(deleted, "nat", chainServices, jump("KUBE-SVC-X")), true},
		"a rule added to one":                         {ruleEvent(added, "filter", chainForward, jump("x")), true},
		"a rule deleted from a Service's chain":       {ruleEvent(deleted, "nat", "KUBE-SEP-ABC", jump("x")), true},
		"the same name in filter":                     {ruleEvent(deleted, "filter", "KUBE-SEP-ABC", jump("x")), false},
		"the same name in another table":              {ruleEvent(deleted, "mine", chainServices, jump("x")), false},
		"the same of another family":                  {six, false},
		"our jump deleted":                            {ruleEvent(deleted, "nat", "PREROUTING", jump(chainServices)), true},
		"another's jump deleted":                      {ruleEvent(deleted, "nat", "PREROUTING", jump("DOCKER")), false},
		"a jump to a chain with a longer name":        {ruleEvent(deleted, "filter", "FORWARD", jump(chainForward+"-MORE")), false},
		"something deleted that is not described":     {ruleEvent(deleted, "filter", "INPUT", ""), true},
		"a jump to ours from where we have none":      {ruleEvent(deleted, "nat", "INPUT", jump(chainServices)), false},
		"a rule added to a built-in chain":            {ruleEvent(added, "nat", "POSTROUTING", jump(chainPostrouting)), false},
		"a rule of a plugin":                          {ruleEvent(added, "nat", "CNI-HOSTPORT-DNAT", jump("CNI-DN-1")), false},
		"the kubelet adds to the chain that we share": {ruleEvent(added, "filter", chainFirewall, jump("x")), false},
		"another program deletes from it":             {ruleEvent(deleted, "filter", chainFirewall, jump("x")), true},
		"our chain deleted":                           {chainEvent(unix.NFT_MSG_DELCHAIN, "nat", "KUBE-SVC-ABC"), true},
		"a chain made with our prefix":                {chainEvent(unix.NFT_MSG_NEWCHAIN, "nat", "KUBE-SVC-ABC"), true},
		"a built-in chain deleted":                    {chainEvent(unix.NFT_MSG_DELCHAIN, "nat", "OUTPUT"), true},
		"a built-in chain's policy set":               {chainEvent(unix.NFT_MSG_NEWCHAIN, "filter", "FORWARD"), false},
		"another's chain deleted":                     {chainEvent(unix.NFT_MSG_DELCHAIN, "nat", "DOCKER"), false},
		"our table deleted":                           {table(unix.NFT_MSG_DELTABLE, "nat"), true},
		"another's table deleted":                     {table(unix.NFT_MSG_DELTABLE, "mangle"), false},
		"our table made":                              {table(unix.NFT_MSG_NEWTABLE, "nat"), false},
		"a set":                                       {event(unix.NFT_MSG_NEWSET, unix.AF_INET, 7, attribute(1, "nat\x00"), attribute(2, chainServices+"\x00")), false},
		"cut short":                                   {ruleEvent(deleted, "nat", chainServices, jump("x"))[:22], false},
	} {
		t.Run(name, func(t *testing.T) {
			e := events(dataplane.IPv4, declared)
			var got []nft.Commit
			for c := range e.Read(append(tt.event, generationEvent(99, 7)...)) {
				got = append(got, c)
			}
			var want []nft.Commit
			if tt.want {
				removed := strings.Contains(name, "deleted") || strings.Contains(name, "deletes")
				want = []nft.Commit{{Generation: 99, Port: 7, By: "iptables, PID 4711", Removed: removed}}
			}
			if diff := cmp.Diff(want, got); diff != "" && name != "cut short" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for range e.Read(generationEvent(100, 7)) {
				t.Error("the next transaction counts as well")
			}
		})
	}
}

// TestRemovalsAreSure: they need no wait, unlike suspicions.
func TestRemovalsAreSure(t *testing.T) {
	const added, deleted = unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE
	for name, tt := range map[string]struct {
		events [][]byte
		want   bool
	}{
		"a rule added":                   {[][]byte{ruleEvent(added, "nat", chainServices, "x")}, false},
		"one deleted":                    {[][]byte{ruleEvent(deleted, "nat", chainServices, "x")}, true},
		"one added, then one deleted":    {[][]byte{ruleEvent(added, "nat", chainServices, "x"), ruleEvent(deleted, "nat", chainServices, "x")}, true},
		"one deleted, then one added":    {[][]byte{ruleEvent(deleted, "nat", chainServices, "x"), ruleEvent(added, "nat", chainServices, "x")}, true},
		"one added, one of others' gone": {[][]byte{ruleEvent(added, "nat", chainServices, "x"), ruleEvent(deleted, "nat", "MINE", "x")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var got []dataplane.Change
			w := eventWatch{
				commits: &Commits{count: func() (uint32, error) { return 99, nil }},
				events:  events(dataplane.IPv4, declared),
				changed: func(c dataplane.Change) { got = append(got, c) },
			}
			var datagram []byte
			for _, e := range append(tt.events, generationEvent(99, 7)) {
				datagram = append(datagram, e...)
			}
			for c := range w.events.Read(datagram) {
				w.undecided = append(w.undecided, c)
			}
			w.judge()
			if want := []dataplane.Change{{By: "iptables, PID 4711", Sure: tt.want}}; !cmp.Equal(want, got) {
				t.Errorf("reported %+v, want %+v", got, want)
			}
		})
	}
	for _, flooded := range []bool{false, true} {
		var got []dataplane.Change
		w := eventWatch{
			commits: &Commits{count: func() (uint32, error) { return 99, nil }},
			changed: func(c dataplane.Change) { got = append(got, c) },
			lost:    true, flooded: flooded,
		}
		w.judge()
		if want := []dataplane.Change{{Sure: flooded}}; !cmp.Equal(want, got) {
			t.Errorf("after a loss, flooded %t: reported %+v, want %+v", flooded, got, want)
		}
		if w.flooded {
			t.Error("the next loss counts as a flood, too")
		}
	}
}

// TestEventsOverSeveralDatagrams: a transaction may be reported in many.
func TestEventsOverSeveralDatagrams(t *testing.T) {
	e := events(dataplane.IPv4, declared)
	for range e.Read(append(ruleEvent(unix.NFT_MSG_DELRULE, "nat", chainServices, "x"), ruleEvent(unix.NFT_MSG_NEWRULE, "nat", "MINE", "x")...)) {
		t.Error("a transaction that has not ended")
	}
	n := 0
	for c := range e.Read(append(append(chainEvent(unix.NFT_MSG_NEWCHAIN, "nat", "MINE"), generationEvent(5, 1)...), generationEvent(6, 2)...)) {
		if n++; c.Generation != 5 {
			t.Errorf("%+v", c)
		}
	}
	if n != 1 {
		t.Errorf("%d transactions", n)
	}
}

// TestAuthors: transactions are ours by their number, and by the writer's port
// where others have written at the same time.
func TestAuthors(t *testing.T) {
	kernel := uint32(1<<32 - 3) // it wraps soon
	c := Commits{count: func() (uint32, error) { return kernel, nil }}
	expect := func(when string, generation, port uint32, want author) {
		t.Helper()
		if got := c.author(generation, port); got != want {
			t.Errorf("%s: the author of %d, port %d, is %d, want %d", when, generation, port, got, want)
		}
	}
	write := func(n int, counted uint32, pid uint32, err error) {
		_ = c.write(n, func() error {
			kernel += counted
			c.mu.Lock()
			c.writers = append(c.writers, pid)
			c.mu.Unlock()
			expect("while we write", kernel, 1, undecided)
			expect("what was before", 1<<32-3, 1, others)
			return err
		})
	}
	first := kernel + 1
	write(2, 2, 100, nil)
	expect("the first of ours", first, 1, ourselves)
	expect("the second of ours", first+1, 1, ourselves)
	expect("before", first-1, 1, others)
	kernel++
	expect("after", first+2, 100, others)
	write(1, 3, 101, nil) // beside others
	for g := first + 3; g <= first+5; g++ {
		expect("beside others, ours", g, 101, ourselves)
		expect("beside others, theirs", g, 1, others)
		expect("beside others, a process of an earlier write", g, 100, others)
	}
	write(2, 1, 102, errors.New("rejected in part"))
	expect("rejected in part, ours", first+6, 102, ourselves)
	expect("rejected in part, theirs", first+6, 1, others)
	for range 2 * maxSpans {
		write(1, 1, 103, nil)
	}
	expect("long ago", first, 1, others)
	expect("the newest", kernel, 1, ourselves)
}

// TestProgramsAreKnownByTheirPort: the port of a program's netlink socket is its
// process, on the real kernel.
func TestProgramsAreKnownByTheirPort(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		plane := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")})
		if err := plane.Supported(t.Context(), &dataplane.Ruleset{}); err != nil {
			t.Fatal(err)
		}
		if plane.kernel.legacy() {
			return
		}
		var got []nft.Commit
		w := eventWatch{commits: &Commits{}, events: events(dataplane.IPv4, declared)}
		if err := w.subscribe(); err != nil {
			t.Fatal(err)
		}
		defer w.file.Close()
		if err := w.listen(true); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(directory+"/iptables", "-t", "nat", "-N", "KUBE-SVC-X")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		buffer := make([]byte, 64<<10)
		for len(got) == 0 {
			n, err := w.file.Read(buffer)
			if err != nil {
				t.Fatal(err)
			}
			for c := range w.events.Read(buffer[:n]) {
				got = append(got, c)
			}
		}
		generation, err := generation()
		if err != nil {
			t.Fatal(err)
		}
		if pid := uint32(cmd.ProcessState.Pid()); got[0].Port != pid || got[0].Generation != generation {
			t.Errorf("%+v, want port %d, generation %d", got[0], pid, generation)
		}
	})
}
