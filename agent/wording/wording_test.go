package wording

import (
	"errors"
	"testing"
)

func TestOneLine(t *testing.T) {
	if got := OneLine(errors.Join(errors.New("IPv4: no"), errors.New("IPv6: no"))); got != "IPv4: no; IPv6: no" {
		t.Error(got)
	}
}
