package parity

import (
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/ipvskernel"
)

func TestMain(m *testing.M) { ipvskernel.RunTests(m, binaries.KubeProxy) }
