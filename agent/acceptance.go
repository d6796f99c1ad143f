package agent

import (
	"fmt"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// refusal is why this agent does not do what its NodeProxyRules say.
type refusal struct {
	reason  string // of condition Accepted
	message string
}

// meanwhile ends every message of a refusal.
const meanwhile = "meanwhile the rules on this node stay as they are and nothing is written"

// accept says why an agent that understands such formats cannot do what the
// object says, whatever the node can, or nil.
func accept(object *v1alpha1.NodeProxyRules, f formats) *refusal {
	if !f.know(object.Spec.FormatVersion) {
		return &refusal{v1alpha1.ReasonUnknownFormat, f.unknown(object.Spec.FormatVersion) + "; " + meanwhile}
	}
	settings := v1alpha1.CompleteSettings(&object.Spec.Settings)
	if errs := v1alpha1.ValidateSettings(settings); len(errs) > 0 {
		problem := errs[0].Error()
		if more := len(errs) - 1; more > 0 {
			problem = fmt.Sprintf("%s (and %d more)", problem, more)
		}
		return &refusal{v1alpha1.ReasonInvalid, fmt.Sprintf(
			"%s; correct it in the NodeProxy (hand edits of this object are reverted); %s", problem, meanwhile)}
	}
	return nil
}

// intervals returns the least pause between syncs and that between
// verifications.
func intervals(s *v1alpha1.ProxySettings) (minimum, verify time.Duration) {
	return time.Duration(*s.Sync.MinIntervalMilliseconds) * time.Millisecond,
		time.Duration(*s.Sync.VerifyIntervalSeconds) * time.Second
}
