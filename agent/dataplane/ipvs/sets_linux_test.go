package ipvs

import (
	"testing"
)

func TestElements(t *testing.T) {
	for kind, entries := range map[SetType][]Entry{
		HashIP:        {"10.96.0.1", "fd00::1"},
		HashIPPort:    {"10.96.0.1,tcp:80", "10.96.0.1,udp:53", "fd00::1,sctp:65535", "10.96.0.1,udplite:1", "10.96.0.1,47:0"},
		HashIPPortIP:  {"10.96.0.1,tcp:80,10.96.0.1", "fd00::1,tcp:80,fd00::2"},
		HashIPPortNet: {"10.96.0.1,tcp:80,10.0.0.0/8", "10.96.0.1,tcp:80,10.0.0.1", "fd00::1,tcp:80,fd00::/16", "fd00::1,tcp:80,fd00::2"},
		BitmapPort:    {"0", "30000", "65535"},
	} {
		for _, e := range entries {
			x, err := ParseElement(kind, e)
			if err != nil || x.Entry(kind) != e {
				t.Errorf("%s: %q is read as %+v, %v", kind, e, x, err)
			}
			// The kernel writes what it was sent.
			back, err := parseAttributes(kind, x.encode(kind))
			if err != nil || back != x {
				t.Errorf("%s: %q comes back as %+v, %v", kind, e, back, err)
			}
		}
	}
	for e, canonical := range map[Entry]Entry{
		"10.96.0.1,6:80,10.0.0.1/32":          "10.96.0.1,tcp:80,10.0.0.1",
		"fd00::1,tcp:80,FD00:0:0::2/128":      "fd00::1,tcp:80,fd00::2",
		"10.96.0.1,tcp:80,10.0.0.0/8 nomatch": "10.96.0.1,tcp:80,10.0.0.0/8 nomatch",
	} {
		if x, err := ParseElement(HashIPPortNet, e); err != nil || x.Entry(HashIPPortNet) != canonical {
			t.Errorf("%q is read as %q, %v", e, x.Entry(HashIPPortNet), err)
		}
	}
}

func TestElementsThatAreNone(t *testing.T) {
	for kind, entries := range map[SetType][]Entry{
		HashIP:        {"", "10.96.0", "10.96.0.1,tcp:80", "fe80::1%eth0"},
		HashIPPort:    {"10.96.0.1", "10.96.0.1,80", "10.96.0.1,tcp:65536", "10.96.0.1,http:80", "10.96.0.1,tcp:80,10.0.0.1", ",tcp:80"},
		HashIPPortIP:  {"10.96.0.1,tcp:80", "10.96.0.1,tcp:80,noone", "fe80::1,tcp:80,fe80::1%eth0", "10.96.0.1,tcp:80,10.0.0.0/8"},
		HashIPPortNet: {"10.96.0.1,tcp:80,10.0.0.0/33"},
		BitmapPort:    {"", "-1", "65536", "tcp:80"},
	} {
		for _, e := range entries {
			if x, err := ParseElement(kind, e); err == nil {
				t.Errorf("%s: %q is read as %+v", kind, e, x)
			}
		}
	}
}

func TestAttributesThatAreCutOff(t *testing.T) {
	whole, err := ParseElement(HashIPPortIP, "10.96.0.1,tcp:80,10.96.0.2")
	if err != nil {
		t.Fatal(err)
	}
	b := whole.encode(HashIPPortIP)
	for i := range b {
		if x, err := parseAttributes(HashIPPortIP, b[:i]); err == nil && x != whole {
			t.Errorf("%d of %d bytes are read as %+v", i, len(b), x)
		}
	}
}

func TestCapacity(t *testing.T) {
	for entries, want := range map[int]int{0: 65536, 32769: 65536, 65536: 65536, 65537: 262144, 100_000: 262144} {
		if got := capacityFor(entries); got != want {
			t.Errorf("%d entries: capacity %d, want %d", entries, got, want)
		}
	}
}
