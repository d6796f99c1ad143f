package uml

import (
	"os"
	"strings"
	"testing"
)

func TestPinned(t *testing.T) {
	lock, err := os.ReadFile("../../hack/pinned.lock")
	if err != nil || !strings.Contains(string(lock), "\n"+program+" "+pinned+" ") {
		t.Errorf("%v, and hack/pinned.lock has no %s %s", err, program, pinned)
	}
}
