package pacing

import (
	"strconv"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
)

// Namespaces that have all their bytes again are forgotten.
func TestNamespacePaceForgets(t *testing.T) {
	const burst = time.Minute
	p := NewBuckets(1<<20, burst, 1000)
	for i := range 100 {
		var of Claim
		p.Wait(strconv.Itoa(i), &of, 1000, controllertest.Noon)
		p.Wrote(strconv.Itoa(i), &of, 1000, controllertest.Noon)
	}
	var waits Claim
	p.Wait("busy", &waits, 128<<20, controllertest.Noon)
	p.Of("other", controllertest.Noon.Add(burst))
	if len(p.all) != 2 {
		t.Errorf("%d namespaces are remembered, want the busy one and that asked for", len(p.all))
	}
	p.GiveBack("forgotten", &Claim{Bytes: 1000, At: controllertest.Noon})
	if len(p.all) != 2 {
		t.Error("giving back made a bucket")
	}
}
