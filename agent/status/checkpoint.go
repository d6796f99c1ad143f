package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
)

// RestoredMessage says that the node runs from the last good set; empty where it
// does not. It holds no age, which would have the status written time and again.
func RestoredMessage(s *desired.Snapshot) string {
	if !s.Restored.Active() {
		return ""
	}
	var what []string
	if s.Restored.Services {
		what = append(what, "the ServiceProxyRules")
	}
	if s.Restored.Rules {
		what = append(what, "the NodeProxyRules of this node")
	}
	how := "what is missing in the kernel is repaired, nothing is changed or removed"
	if s.Restored.Rebooted {
		how = "the node has restarted since, so endpoints on this node are left out and health checks answer 503"
	}
	return fmt.Sprintf("%s could not be read from the API since the agent started (%s): the node runs from the last good set on its disk, written %s: %s, until the API answers",
		strings.Join(what, " and "), wording.Clip(s.Restored.Why, wording.MaxExample), s.Restored.Written.UTC().Format(time.RFC3339), how)
}
