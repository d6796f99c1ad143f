package dataplanetest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Seed returns the seed of a random test: that of NODEPROXY_SEED, or a new one. The log of a test
// that fails has it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("NODEPROXY_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("NODEPROXY_SEED: %v", err)
		}
	}
	t.Logf("to repeat: NODEPROXY_SEED=%d", seed)
	return seed
}
