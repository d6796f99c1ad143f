package kernel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
)

// entries are examples for each type, in the order in which ipset sorts them.
func (l *lab) entries() map[ipvs.SetType][]ipvs.Entry {
	if l.addr(1).Is4() {
		return map[ipvs.SetType][]ipvs.Entry{
			ipvs.HashIP:     {"10.96.0.1", "10.96.0.10", "192.168.0.1"},
			ipvs.HashIPPort: {"10.96.0.1,sctp:80", "10.96.0.1,tcp:80", "10.96.0.1,tcp:8080", "10.96.0.1,udp:80"},
			ipvs.HashIPPortIP: {"10.244.0.1,sctp:80,10.244.0.1", "10.244.0.1,tcp:80,10.244.0.1",
				"10.244.0.1,udp:80,10.244.0.1"},
			ipvs.HashIPPortNet: {"1.2.3.4,tcp:80,10.0.0.0/8", "1.2.3.4,tcp:80,203.0.113.0/25", "1.2.3.4,tcp:80,203.0.113.7",
				"1.2.3.4,udp:80,0.0.0.0/1"},
			ipvs.BitmapPort: {"0", "1", "30000", "65535"},
		}
	}
	return map[ipvs.SetType][]ipvs.Entry{
		ipvs.HashIP:     {"2001:db8::1", "fd00:96::1", "fd00:96::10"},
		ipvs.HashIPPort: {"fd00:96::1,sctp:80", "fd00:96::1,tcp:80", "fd00:96::1,tcp:8080", "fd00:96::1,udp:80"},
		ipvs.HashIPPortIP: {"fd00:244::1,sctp:80,fd00:244::1", "fd00:244::1,tcp:80,fd00:244::1",
			"fd00:244::1,udp:80,fd00:244::1"},
		ipvs.HashIPPortNet: {"2001:db8::1,tcp:80,2001:db8:1::/48", "2001:db8::1,tcp:80,2001:db8:2::1", "2001:db8::1,udp:80,8000::/1"},
		ipvs.BitmapPort:    {"0", "1", "30000", "65535"},
	}
}

// setName is that of kube-proxy's kind, with the longest there are.
func (l *lab) setName(t ipvs.SetType) ipvs.SetName {
	prefix := pick(l, "KUBE-", "KUBE-6-")
	return ipvs.SetName((prefix + strings.ToUpper(strings.NewReplacer(":", "-", ",", "-").Replace(string(t))) + "-SET-WITH-A-LONG-NAME")[:31])
}

// headerOf is what the ipset program prints of a set, but for its entries.
func headerOf(t *testing.T, name ipvs.SetName) string {
	t.Helper()
	return run(t, "ipset list -t "+string(name))
}

// listed is what the ipset program prints of a set.
func listed(t *testing.T, name ipvs.SetName) (header string, entries []ipvs.Entry) {
	t.Helper()
	out := run(t, "ipset list -sorted "+string(name))
	header, elements, _ := strings.Cut(out, "Members:\n")
	for line := range strings.Lines(elements) {
		entries = append(entries, ipvs.Entry(strings.TrimSpace(line)))
	}
	return header, entries
}

func (l *lab) expectSet(t *testing.T, name ipvs.SetName, want []ipvs.Entry) {
	t.Helper()
	got, err := l.Sets([]ipvs.SetName{name, "NO-SUCH-SET"})
	check(t, err)
	entries := got[name]
	slices.Sort(entries)
	want = slices.Sorted(slices.Values(want))
	if diff := cmp.Diff(want, entries); diff != "" || len(got) != 1 {
		t.Errorf("%d sets, %s differs (-want +got):\n%s", len(got), name, diff)
	}
	_, printed := listed(t, name)
	slices.Sort(printed)
	if !slices.Equal(printed, want) {
		t.Errorf("ipset prints of %s %v, want %v", name, printed, want)
	}
}

func (l *lab) sets(t *testing.T) {
	var changes []ipvs.SetChange
	var names []ipvs.SetName
	for kind, entries := range l.entries() {
		changes = append(changes, ipvs.SetChange{Name: l.setName(kind), Type: kind, Create: true, Add: entries})
		names = append(names, l.setName(kind))
	}
	check(t, l.DeleteSets(names), l.ChangeSets(changes))
	family := pick(l, "inet", "inet6")
	for kind, entries := range l.entries() {
		name := l.setName(kind)
		l.expectSet(t, name, entries)
		// As the program would have made it, with the newest revision.
		options := " family " + family + " hashsize 1024 maxelem 65536"
		if kind == ipvs.BitmapPort {
			options = " range 0-65535"
		}
		run(t, "ipset create "+string(name)+" "+string(kind)+options+" -exist")
		run(t, "ipset create AS-IPSET-DOES "+string(kind)+options)
		ours, _ := listed(t, name)
		theirs, _ := listed(t, "AS-IPSET-DOES")
		for _, line := range []string{"Type:", "Revision:", "Header:"} {
			if lineOf(ours, line) != lineOf(theirs, line) {
				t.Errorf("%s: %q, ipset makes %q", name, lineOf(ours, line), lineOf(theirs, line))
			}
		}
		check(t, l.DeleteSets([]ipvs.SetName{"AS-IPSET-DOES"}))

		// Once more, with nothing to do, and then others.
		check(t, l.ChangeSets([]ipvs.SetChange{{Name: name, Type: kind, Create: true, Add: entries}}))
		check(t, l.ChangeSets([]ipvs.SetChange{{Name: name, Type: kind, Remove: entries[:1]}}))
		check(t, l.ChangeSets([]ipvs.SetChange{{Name: name, Type: kind, Remove: entries[:1]}}))
		l.expectSet(t, name, entries[1:])
		check(t, l.ChangeSets([]ipvs.SetChange{{Name: name, Type: kind, Add: entries[:1], Remove: entries[1:]}}))
		l.expectSet(t, name, entries[:1])
		fresh := ipvs.NewKernel(l.family, "")
		check(t, fresh.ChangeSets([]ipvs.SetChange{{Name: name, Type: kind, Add: entries}}))
		l.expectSet(t, name, entries)

		var about *ipvs.SetError
		err := l.ChangeSets([]ipvs.SetChange{{Name: name, Type: kind, Add: []ipvs.Entry{entries[0], "nonsense"}}})
		if !errors.As(err, &about) || about.Set != name || about.Entry != "nonsense" {
			t.Errorf("an entry that is none: %v", err)
		}
	}
	check(t, l.DeleteSets(names), l.DeleteSets(names))
	if got, err := l.Sets(names); err != nil || len(got) > 0 {
		t.Errorf("sets after they were deleted: %v, %v", got, err)
	}
	check(t, l.ChangeSets([]ipvs.SetChange{{Name: names[0], Type: changes[0].Type, Remove: changes[0].Add}})) // nothing to remove it from
	if err := l.ChangeSets([]ipvs.SetChange{{Name: names[0], Type: changes[0].Type, Add: changes[0].Add}}); err == nil {
		t.Error("entries can be added to a set that is missing")
	}
}

// lineOf returns the line that begins so, without what every set has its own of.
func lineOf(text, beginning string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, beginning) {
			line, _, _ = strings.Cut(line, " initval")
			return strings.TrimSpace(line)
		}
	}
	return ""
}

func (l *lab) setsOfOthers(t *testing.T) {
	family := " family " + pick(l, "inet", "inet6")
	// Of another type, another family, and in use.
	name := l.setName(ipvs.HashIPPort)
	run(t, "ipset create "+string(name)+" hash:ip"+family)
	for _, create := range []bool{true, false} {
		var about *ipvs.SetError
		err := l.ChangeSets([]ipvs.SetChange{{Name: name, Type: ipvs.HashIPPort, Create: create, Add: l.entries()[ipvs.HashIPPort]}})
		if !errors.As(err, &about) || !strings.Contains(err.Error(), "ipset destroy "+string(name)) || !strings.Contains(err.Error(), "hash:ip,port") {
			t.Errorf("a set of another type: %v", err)
		}
	}
	run(t, "ipset destroy "+string(name))
	run(t, "ipset create "+string(name)+" hash:ip,port family "+pick(l, "inet6", "inet"))
	if _, err := l.Sets([]ipvs.SetName{name}); err == nil || !strings.Contains(err.Error(), pick(l, "IPv6", "IPv4")) {
		t.Errorf("a set of the other family: %v", err)
	}
	if err := l.ChangeSets([]ipvs.SetChange{{Name: name, Type: ipvs.HashIPPort, Create: true}}); err == nil {
		t.Error("a set of the other family is taken")
	}
	run(t, "ipset destroy "+string(name))
	run(t, "ipset create "+string(name)+" list:set")
	if _, err := l.Sets([]ipvs.SetName{name}); err == nil || !strings.Contains(err.Error(), "list:set") {
		t.Errorf("a set of a type that we have none of: %v", err)
	}
	run(t, "ipset destroy "+string(name))

	rule := pick(l, "iptables-legacy", "ip6tables-legacy") + " -w %s OUTPUT -m set --match-set " + string(name) + " dst,dst -j ACCEPT"
	check(t, l.ChangeSets([]ipvs.SetChange{{Name: name, Type: ipvs.HashIPPort, Create: true}}))
	run(t, fmt.Sprintf(rule, "-A"))
	if err := l.DeleteSets([]ipvs.SetName{name}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("deleting a set that is in use: %v", err)
	}
	run(t, fmt.Sprintf(rule, "-D"))
	check(t, l.DeleteSets([]ipvs.SetName{name}))

	// With options, and entries that state what is not in it.
	name = l.setName(ipvs.HashIPPortNet)
	run(t, "ipset create "+string(name)+" hash:ip,port,net counters comment timeout 0"+family)
	a, b := l.entries()[ipvs.HashIPPortNet][0], l.entries()[ipvs.HashIPPortNet][1]
	for _, e := range []ipvs.Entry{a, b} {
		run(t, "ipset add "+string(name)+" "+string(e)+" nomatch")
	}
	got, err := l.Sets([]ipvs.SetName{name})
	check(t, err)
	entries := slices.Sorted(slices.Values(got[name]))
	if want := []ipvs.Entry{a + " nomatch", b + " nomatch"}; !slices.Equal(entries, want) {
		t.Errorf("entries %v, want %v", entries, want)
	}
	check(t, l.ChangeSets([]ipvs.SetChange{{Name: name, Type: ipvs.HashIPPortNet, Add: []ipvs.Entry{a}, Remove: entries}}))
	if got, err = l.Sets([]ipvs.SetName{name}); err != nil || !slices.Equal(got[name], []ipvs.Entry{a}) {
		t.Errorf("entries %v, %v", got[name], err)
	}
	check(t, l.DeleteSets([]ipvs.SetName{name}))
}

// largeSet outgrows a set that was made small, while a rule uses it.
func (l *lab) largeSet(t *testing.T) {
	name := l.setName(ipvs.HashIPPort)
	run(t, "ipset create "+string(name)+" hash:ip,port maxelem 100 family "+pick(l, "inet", "inet6"))
	rule := pick(l, "iptables-legacy", "ip6tables-legacy") + " -w %s OUTPUT -m set --match-set " + string(name) + " dst,dst -j ACCEPT"
	run(t, fmt.Sprintf(rule, "-A"))
	for _, size := range []int{70_000, 140_000} {
		var all []ipvs.Entry
		for i := range size {
			all = append(all, ipvs.Entry(fmt.Sprintf(pick(l, "10.96.%d.1,tcp:%d", "fd00:96::%x,tcp:%d"), i/50000+1, i%50000+1)))
		}
		check(t, l.ChangeSets([]ipvs.SetChange{{Name: name, Type: ipvs.HashIPPort, Add: all}}))
		got, err := l.Sets([]ipvs.SetName{name})
		check(t, err)
		slices.Sort(all)
		slices.Sort(got[name])
		if !slices.Equal(all, got[name]) {
			t.Fatalf("%d entries of %d", len(got[name]), len(all))
		}
	}
	if header := headerOf(t, name); !strings.Contains(header, "References: 1\n") || !strings.Contains(header, "maxelem 262144") {
		t.Errorf("the set:\n%s", header)
	}
	if names := run(t, "ipset list -n"); strings.TrimSpace(names) != string(name) {
		t.Errorf("the sets:\n%s", names)
	}
	run(t, fmt.Sprintf(rule, "-D"))
	check(t, l.DeleteSets([]ipvs.SetName{name}))
	// One that is large from the start.
	var many []ipvs.Entry
	for i := range 70_000 {
		many = append(many, ipvs.Entry(fmt.Sprintf(pick(l, "10.96.%d.1,tcp:%d", "fd00:96::%x,tcp:%d"), i/50000+1, i%50000+1)))
	}
	check(t, l.ChangeSets([]ipvs.SetChange{{Name: name, Type: ipvs.HashIPPort, Create: true, Add: many}}))
	if header := headerOf(t, name); !strings.Contains(header, "maxelem 262144") || !strings.Contains(header, "Number of entries: 70000") {
		t.Errorf("the set:\n%s", header)
	}
	check(t, l.DeleteSets([]ipvs.SetName{name}))
}
