package modes

import (
	"os"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

func TestMain(m *testing.M) { uml.Main(m) }

// inKernel runs a test in a kernel that has IPVS, of which it is the first process.
func inKernel(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if uml.Inside() {
		test(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	t.Parallel() // the kernels have a processor each
	out, err := uml.Run(t.Context(), uml.Options{Test: t.Name(), Folder: t.TempDir()})
	if err != nil {
		t.Fatalf("%v\nthe test printed:\n%s", err, out.Output)
	}
	t.Logf("in %.1f s:\n%s", out.Took.Seconds(), out.Output)
	if out.Status != 0 {
		t.Errorf("the test in the kernel failed")
	}
}
