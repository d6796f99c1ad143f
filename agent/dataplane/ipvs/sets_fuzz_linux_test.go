package ipvs

import (
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// FuzzElement reads text as an entry of an ipset. What is read must come back from
// its text, and from the attributes that the kernel receives.
func FuzzElement(f *testing.F) {
	for i, text := range []string{"10.96.0.1", "fd00::1,sctp:65535", "10.96.0.1,tcp:80,10.96.0.1", "10.96.0.1,tcp:80,10.0.0.0/8 nomatch", "30080"} {
		f.Add(byte(i), text)
	}
	f.Fuzz(func(t *testing.T, kind byte, text string) {
		set := ourTypes[int(kind)%len(ourTypes)]
		x, err := ParseElement(set, Entry(text))
		if err != nil {
			return
		}
		if again, err := ParseElement(set, x.Entry(set)); err != nil || again != x {
			t.Errorf("%s: %q is printed as %q and then read as %+v, %v", set, text, x.Entry(set), again, err)
		}
		sent := x
		sent.NoMatch = false // encode writes no flags
		if back, err := parseAttributes(set, x.encode(set)); err != nil || back != sent {
			t.Errorf("%s: %q comes back from the kernel as %+v, %v, want %+v", set, text, back, err, sent)
		}
	})
}

// FuzzSetReply reads bytes as the kernel's answer that lists an ipset. An entry that
// is read must be one that can be written.
func FuzzSetReply(f *testing.F) {
	x, err := ParseElement(HashIPPortNet, "10.96.0.1,tcp:80,10.0.0.0/8")
	if err != nil {
		f.Fatal(err)
	}
	entry := nlattr.Append(nil, nl.IPSET_ATTR_DATA|nlattr.Nested, x.encode(HashIPPortNet))
	f.Add(nlattr.Append(nlattr.AppendText(nil, nl.IPSET_ATTR_TYPENAME, string(HashIPPortNet)), nl.IPSET_ATTR_ADT|nlattr.Nested, entry))
	f.Fuzz(func(t *testing.T, message []byte) {
		var list setList
		list.add(message)
		if list.err != nil || !slices.Contains(ourTypes, list.header.kind) {
			return
		}
		if len(list.entries) > len(message)/4 {
			t.Fatalf("%d entries from %d bytes", len(list.entries), len(message))
		}
		for _, e := range list.entries {
			x, err := ParseElement(list.header.kind, e)
			if err != nil {
				t.Fatalf("an entry of the kernel cannot be read: %v", err)
			}
			if again := x.Entry(list.header.kind); again != e {
				t.Errorf("%q is read as %q", e, again)
			}
		}
	})
}
