package text

import "testing"

func TestSentencesOfOthers(t *testing.T) {
	for _, tt := range []struct{ text, clause, first string }{
		{"", "", ""},
		{"no such file", "no such file", "no such file"},
		{"It failed. Try again.", "It failed; Try again", "It failed"},
		{"dial 10.0.0.1:443: timed out. v1.2 is too old", "dial 10.0.0.1:443: timed out. v1.2 is too old", "dial 10.0.0.1:443: timed out. v1.2 is too old"},
		{"denied.\nPerhaps not.", "denied; Perhaps not", "denied"},
		{"10.0.0.1: exit. status", "10.0.0.1: exit. status", "10.0.0.1: exit. status"},
		{"One. Two.\nThree.", "One; Two; Three", "One"},
	} {
		if got := Clause(tt.text); got != tt.clause {
			t.Errorf("the clause of %q is %q, want %q", tt.text, got, tt.clause)
		}
		if got := FirstSentence(tt.text); got != tt.first {
			t.Errorf("the first sentence of %q is %q, want %q", tt.text, got, tt.first)
		}
	}
}

func TestCountOf(t *testing.T) {
	for _, tt := range []struct {
		n, all int
		want   string
	}{
		{0, 1, "0 of 1 Service has"}, {1, 1, "1 of 1 Service has"}, {1, 4, "1 of 4 Services have"}, {0, 0, "0 of 0 Services have"},
	} {
		if got := CountOf(tt.n, tt.all, "Service") + " " + For(tt.all, "has", "have"); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

func TestTruncate(t *testing.T) {
	for _, tt := range []struct {
		text  string
		bytes int
		want  string
	}{
		{"enough", 6, "enough"}, {"too long", 7, "too ..."}, {"äöü", 5, "ä..."}, {"äöü", 6, "äöü"}, {"a\xff\xfeb", 10, "a?b"}, {"", 3, ""},
	} {
		if got := Truncate(tt.text, tt.bytes); got != tt.want {
			t.Errorf("%q in %d bytes is %q, want %q", tt.text, tt.bytes, got, tt.want)
		}
	}
}
