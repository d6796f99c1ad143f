package modes

import (
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
	t.Parallel() // the kernels have a processor each
	uml.Test(t, uml.Options{})
}
