package fulltable

import (
	"os"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

func TestMain(m *testing.M) { uml.Main(m) }

// TestFullTable boots a machine for TestScenario.
func TestFullTable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	if m, err := Run(t, "TestScenario"); err != nil || m.Tried == 0 || m.Failed > 0 || m.Refused == 0 {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestScenario(t *testing.T) { Inside(t) }
