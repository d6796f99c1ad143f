package desired

import (
	"fmt"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Refusal is why this agent does not do what its NodeProxyRules say.
type Refusal struct {
	Reason  string // of condition Accepted
	Message string
}

// Meanwhile ends every message of a refusal.
const Meanwhile = "meanwhile the rules on this node stay as they are and nothing is written"

// accept says why an agent that understands such formats cannot do what the
// object says, whatever the node can, or nil.
func accept(object *v1alpha1.NodeProxyRules, f Formats) *Refusal {
	if !f.know(object.Spec.FormatVersion) {
		return &Refusal{v1alpha1.ReasonUnknownFormat, f.unknown(object.Spec.FormatVersion) + "; " + Meanwhile}
	}
	settings := v1alpha1.CompleteSettings(&object.Spec.Settings)
	if errs := v1alpha1.ValidateSettings(settings); len(errs) > 0 {
		problem := errs[0].Error()
		if more := len(errs) - 1; more > 0 {
			problem = fmt.Sprintf("%s (and %d more)", problem, more)
		}
		return &Refusal{v1alpha1.ReasonInvalid, fmt.Sprintf(
			"%s; correct it in the NodeProxy (hand edits of this object are reverted); %s", problem, Meanwhile)}
	}
	return nil
}
