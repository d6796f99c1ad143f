package ipvs

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

func elementTypes() []SetType {
	return []SetType{HashIP, HashIPPort, HashIPPortIP, HashIPPortNet, BitmapPort}
}

// FuzzElement reads text as an entry of an ipset. What is read must come back from
// its text, and from the attributes that the kernel receives.
func FuzzElement(f *testing.F) {
	for i, text := range []string{"10.96.0.1", "fd00::1,sctp:65535", "10.96.0.1,tcp:80,10.96.0.1", "10.96.0.1,tcp:80,10.0.0.0/8 nomatch", "30080"} {
		f.Add(byte(i), text)
	}
	f.Fuzz(func(t *testing.T, kind byte, text string) {
		set := elementTypes()[int(kind)%len(elementTypes())]
		x, err := parseElement(set, Entry(text))
		if err != nil {
			return
		}
		if again, err := parseElement(set, x.entry(set)); err != nil || again != x {
			t.Errorf("%s: %q is printed as %q and then read as %+v, %v", set, text, x.entry(set), again, err)
		}
		sent := x
		sent.noMatch = false // encode writes no flags
		if back, err := parseAttributes(set, x.encode(set)); err != nil || back != sent {
			t.Errorf("%s: %q comes back from the kernel as %+v, %v, want %+v", set, text, back, err, sent)
		}
	})
}

// FuzzSetReply reads bytes as the kernel's answer that lists an ipset. An entry that
// is read must be one that can be written.
func FuzzSetReply(f *testing.F) {
	x, err := parseElement(HashIPPortNet, "10.96.0.1,tcp:80,10.0.0.0/8")
	if err != nil {
		f.Fatal(err)
	}
	entry := nlattr.Append(nil, attrData|nlattr.Nested, x.encode(HashIPPortNet))
	f.Add(nlattr.Append(nlattr.AppendText(nil, attrTypeName, string(HashIPPortNet)), attrEntries|nlattr.Nested, entry))
	f.Fuzz(func(t *testing.T, message []byte) {
		var list setList
		list.add(message)
		if list.err != nil || !isOurType(list.header.kind) {
			return
		}
		if len(list.entries) > len(message)/4 {
			t.Fatalf("%d entries from %d bytes", len(list.entries), len(message))
		}
		for _, e := range list.entries {
			x, err := parseElement(list.header.kind, e)
			if err != nil {
				t.Fatalf("an entry of the kernel cannot be read: %v", err)
			}
			if again := x.entry(list.header.kind); again != e {
				t.Errorf("%q is read as %q", e, again)
			}
		}
	})
}
