package ipvs

import (
	"errors"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// TestAlteredError: the message names what differs, without the names of our fields.
func TestAlteredError(t *testing.T) {
	err := alteredError(probeKeys(dataplane.IPv4)[0], probeServer("mh"), Server{Scheduler: "rr"})
	const want = "one added at 198.51.100.0:20000/TCP with scheduler mh, persistence of 7391753 s has scheduler rr, no persistence: use another kernel"
	if text := err.Error(); !strings.Contains(text, want) || !errors.Is(err, dataplane.ErrUnsupported) {
		t.Errorf("%s\nwant %s", text, want)
	}
}
