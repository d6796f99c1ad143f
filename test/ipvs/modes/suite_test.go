package modes

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

func TestMain(m *testing.M) { uml.Main(m) }

// inKernel runs a test in a kernel that has IPVS, of which it is the first process, and returns what
// it reported there. Inside, that is nothing.
func inKernel(t *testing.T, test func(t *testing.T)) (reported string) {
	t.Helper()
	if !uml.Inside() {
		t.Parallel() // the kernels have a processor each
	}
	return string(uml.InKernel(t, uml.Options{}, test).Result)
}
