package wording

import (
	"errors"
	"testing"
)

func TestClause(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		"no such file":           "no such file",
		"It failed. Try again.":  "It failed; Try again",
		"denied.\nPerhaps not.":  "denied; Perhaps not",
		"10.0.0.1: exit. status": "10.0.0.1: exit. status",
	} {
		if got := Clause(text); got != want {
			t.Errorf("the clause of %q is %q, want %q", text, got, want)
		}
	}
	if got := OneLine(errors.Join(errors.New("IPv4: no"), errors.New("IPv6: no"))); got != "IPv4: no; IPv6: no" {
		t.Error(got)
	}
}
