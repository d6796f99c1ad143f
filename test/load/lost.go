package load

import (
	"errors"
	"fmt"
	"os"
	"testing"
)

// NeverRetried ends each report of lost connections. hack/testreport looks for it: a test
// that reports it has failed for good.
const NeverRetried = "lost connections are never retried"

// PartRepeated begins what a test logs when it repeats a part of itself that has failed.
// hack/testreport looks for it, and counts it as a retried test.
const PartRepeated = "failed, and is repeated: "

// PlantVariable names the variable that makes every Load lose one connection that was fine, and tests
// without a Load those that they make. It proves that a suite notices: its run must fail, and must not
// be repeated.
const PlantVariable = "PLANT_LOSS"

// plantLast is the value of PlantVariable for which a Load loses its last connection instead of its first.
const plantLast = "last"

// Lost fails a test that has lost connections.
func Lost(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Errorf("%s: %s", fmt.Sprintf(format, args...), NeverRetried)
}

// FatalLoss is Lost, and ends the test.
func FatalLoss(t testing.TB, format string, args ...any) {
	t.Helper()
	Lost(t, format, args...)
	t.FailNow()
}

var errPlanted = errors.New("planted by " + PlantVariable + ": this connection was fine")

// Planted returns the failure of a connection that PlantVariable asks for, or nil.
func Planted() error {
	if os.Getenv(PlantVariable) == "" {
		return nil
	}
	return errPlanted
}
