package uml

import (
	"os"
	"testing"
)

// Test runs Options.Test, the calling test by default, in a kernel of its own, and fails
// the calling test unless it passes there. Without root or User-mode Linux it skips it.
func Test(t *testing.T, o Options) Outcome {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	if err := Missing(); err != nil {
		t.Skip(err)
	}
	if o.Test == "" {
		o.Test = t.Name()
	}
	o.Directory = t.TempDir()
	out, err := Run(t.Context(), o)
	if err != nil || out.Status != 0 {
		t.Fatalf("in User-mode Linux: status %d, %v\n%s", out.Status, err, out.Output)
	}
	t.Logf("in %.1f s:\n%s", out.Took.Seconds(), out.Output)
	return out
}

// InKernel runs the calling test in a kernel of its own, as Test does, where the test calls it again and it
// runs f. Its Outcome is empty there.
func InKernel(t *testing.T, o Options, f func(t *testing.T)) Outcome {
	t.Helper()
	if Inside() {
		f(t)
		return Outcome{}
	}
	return Test(t, o)
}
