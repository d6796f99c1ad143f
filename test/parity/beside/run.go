package beside

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// maxFailed ends a run in which world after world fails.
const maxFailed = 3

// fullVariable asks for a full run.
const fullVariable = "PARITY_FULL"

// Full reports whether the run is a full one: it compares more worlds, and fails if
// it never meets one of the listed differences.
func Full() bool { return os.Getenv(fullVariable) == "1" }

// Selection is the worlds of a run: fixed ones, which are the same in each run, and
// fresh ones, which follow from a seed.
type Selection struct {
	// First is the seed of the first fixed world; each further one has the next.
	First int
	Fixed int
	// Seed is that of the first fresh world; each further one has the next.
	Seed  int
	Fresh int
}

// maxSeed bounds the seeds that are drawn, which users copy.
const maxSeed = 1_000_000

// Seed returns the number in an environment variable or, if it is empty, another one
// each time, and prints how to repeat it.
func Seed(t *testing.T, name string) int {
	t.Helper()
	seed := Variable(t, name, 0, rand.IntN(maxSeed)) //nolint:gosec // to be repeated, not to be secret
	// The | has hack/testreport show the line.
	fmt.Printf("| %s=%d repeats the fresh worlds of %s\n", name, seed, t.Name())
	return seed
}

// EachWorld runs a subtest for each world of a selection and gives up when too many
// have failed. The first fixed and the first fresh world depend on no world before.
func EachWorld(t *testing.T, s Selection, live func(t *testing.T, seed uint64, first bool)) {
	t.Helper()
	failed := 0
	run := func(begin, count int) {
		for n := begin; n < begin+count && failed < maxFailed; n++ {
			if !t.Run(fmt.Sprintf("world %d", n), func(t *testing.T) {
				live(t, uint64(n), n == begin) //nolint:gosec // a seed
			}) {
				failed++
			}
		}
	}
	run(s.First, s.Fixed)
	run(s.Seed, s.Fresh)
	if failed == maxFailed {
		t.Errorf("giving up after %d worlds that failed", failed)
	}
}

// Met counts in how many comparisons the two proxies would have differed but for a
// listed difference.
type Met map[string]int

// Check reports the counts and, in a full run, fails if a difference was never met.
func (m Met) Check(t *testing.T, listed []string) {
	t.Helper()
	complete := Full() && !t.Failed()
	for _, name := range listed {
		t.Logf("difference %q was met %d times", name, m[name])
		if m[name] == 0 && complete {
			t.Errorf("difference %q was never met: remove it from the list, or draw worlds that have it", name)
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
