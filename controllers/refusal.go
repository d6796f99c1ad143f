package controllers

import (
	"errors"
	"strings"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Reasons and actions of events about Services.
const (
	eventAddressesSkipped     = "AddressesSkipped"
	eventEndpointsSkipped     = "EndpointsSkipped"
	eventSourceRangesUnusable = "SourceRangesUnusable"
	eventServiceRefused       = "ServiceRefused"
	actionRender              = "Render"
	actionWrite               = "Write"
)

// Bounds of what is written.
const (
	maxObjectBytes   = 1 << 20 // etcd takes 1.5 MiB; the rest is for metadata and growth of the format
	maxEventNote     = 1000    // the API takes 1024
	maxStatusMessage = 1024
)

const tooLargeMessage = "as ServiceProxyRules it would be larger than 1 MiB; split the Service or let it select fewer pods"

// errCreate marks the failure of a creation. That nothing is found then means
// that the API server lacks the kind.
var errCreate = errors.New("create")

// renderedPolicy is the policy that leaves rendered objects to the controller.
const renderedPolicy = "ValidatingAdmissionPolicy 'nodeproxy-rendered-objects'"

// refusedByAPI tells whether the API server refused what an object says, so
// that the same write will fail until the object or a rule of the cluster
// changes. What is refused and not stored leaves the inventory, upon which
// nodes drop the rules they hold of it. So failures that say nothing of the
// one object must not count: missing rights and a CRD that is being deleted,
// which are Forbidden too, or a webhook that does not answer. So it is the
// words of the admission chain that decide. Our own policy counts as a missing
// right, too: it refuses whatever it is that a controller writes which it does not
// know, such as one in another namespace than the controller before.
func refusedByAPI(err error) bool {
	if apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
		return true
	}
	message := refusalMessage(err)
	if strings.Contains(message, renderedPolicy) {
		return false
	}
	for _, words := range []string{
		"denied request",     // a ValidatingAdmissionPolicy, whatever its reason
		"denied the request", // a webhook, whatever its code
		"exceeded quota",
	} {
		if strings.Contains(message, words) {
			return true
		}
	}
	return false
}

// ignoreRace retries soon where a write failed only because the cache is
// behind. An object that is not there to be written needs no retry: the watch
// will tell that it is gone.
func ignoreRace(err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return ctrl.Result{RequeueAfter: retrySoon}, nil
	case apierrors.IsNotFound(err) && !errors.Is(err, errCreate):
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, err
}

// refusalMessage is what the API server said.
func refusalMessage(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return truncated(status.Status().Message, maxStatusMessage)
	}
	return truncated(err.Error(), maxStatusMessage)
}

// truncated cuts a text to a number of bytes without breaking a character.
func truncated(s string, bytes int) string {
	if len(s) <= bytes {
		return s
	}
	const mark = "..."
	cut := bytes - len(mark)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strings.ToValidUTF8(s[:cut], "") + mark
}
