package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/uml"
	"github.com/nodeproxy-io/nodeproxy/test/uml/fulltable"
)

// TestMain lets this test binary be the first process of a kernel of its own.
func TestMain(m *testing.M) { uml.Main(m) }

const (
	fullTable = "conntrack-full"
	// heldWhenFull is how many connections fulltable holds.
	heldWhenFull = 10
)

// conntrackFull fills the connection tracking table of a kernel of its own: there
// is one for all of this machine's network namespaces. New connections fail then,
// any proxy; open ones must not.
func conntrackFull(t *testing.T, rows *table) {
	t.Parallel()
	begun := time.Now()
	m, err := fulltable.Run(t, "TestInKernelOfItsOwn")
	if err != nil {
		t.Error(err)
	}
	if m.Tried == 0 || m.Rejected == 0 {
		t.Errorf("%+v", m)
	}
	rows.add(row{number: rows.number(fullTable), title: "conntrack table full (User-mode Linux)", lasted: time.Since(begun),
		tried: m.Rejected, held: heldWhenFull, failed: m.Rejected + m.Failed, allowed: "new ones while it is full",
		repaired: time.Duration(m.RepairSeconds * float64(time.Second)), ok: !t.Failed(),
		remarks: []string{fmt.Sprintf("%d questions on held connections, %d without an answer; reported as over after %.1f s", m.Tried, m.Failed, m.ReportedSeconds)}})
}

// TestInKernelOfItsOwn is what conntrackFull runs there.
func TestInKernelOfItsOwn(t *testing.T) { fulltable.Inside(t) }
