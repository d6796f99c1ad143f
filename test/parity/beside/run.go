package beside

import (
	"fmt"
	"os"
	"strconv"
	"testing"
)

// maxFailed ends a run in which world after world fails.
const maxFailed = 3

// EachWorld runs a subtest for each of a number of worlds, world i by the seed plus i.
// It gives up when too many have failed.
func EachWorld(t *testing.T, seed, count int, live func(t *testing.T, seed uint64)) {
	t.Helper()
	failed := 0
	for n := seed; n < seed+count; n++ {
		ok := t.Run(fmt.Sprintf("world %d", n), func(t *testing.T) {
			live(t, uint64(n)) //nolint:gosec // a seed
		})
		if ok {
			continue
		}
		if failed++; failed == maxFailed {
			t.Errorf("giving up after %d worlds that failed", failed)
			return
		}
	}
}

// Variable returns the number that an environment variable holds, which has to be
// least or more, or otherwise if there is none.
func Variable(t *testing.T, name string, least, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least {
		t.Fatalf("%s=%s: a number from %d is expected", name, text, least)
	}
	return n
}
