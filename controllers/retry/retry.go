package retry

import (
	"errors"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/nodeproxy-io/nodeproxy/controllers/text"
)

const (
	// ApplyPause is the least time between two writes of the DaemonSet, so that
	// whoever keeps changing it is not fought at full speed.
	ApplyPause = time.Second
	// DeniedPause is the time until a DaemonSet that the API server refuses is
	// tried again, if nothing else changes before.
	DeniedPause = time.Minute
)

// Sooner is the earlier of two times that are still to come; 0: never.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// ErrCreate marks the failure of a creation. That nothing is found then means
// that the API server lacks the kind.
var ErrCreate = errors.New("create")

// renderedPolicy is the policy that leaves rendered objects to the controller.
const renderedPolicy = "ValidatingAdmissionPolicy 'nodeproxy-rendered-objects'"

// Denied tells whether the API server refused what an object says, so
// that the same write will fail until the object or a rule of the cluster
// changes. What is refused and not stored leaves the inventory, upon which
// nodes drop the rules they hold of it. So failures that say nothing of the
// one object must not count: missing rights and a CRD that is being deleted,
// which are Forbidden too, or a webhook that does not answer. So it is the
// words of the admission chain that decide. Our own policy counts as a missing
// right, too: it refuses whatever it is that a controller writes which it does not
// know, such as one in another namespace than the controller before.
func Denied(err error) bool {
	if apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
		return true
	}
	message := Message(err)
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

// IgnoreRace retries soon where a write failed only because the cache is
// behind. An object that is not there to be written needs no retry: the watch
// will tell that it is gone.
func IgnoreRace(err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return ctrl.Result{RequeueAfter: Soon}, nil
	case apierrors.IsNotFound(err) && !errors.Is(err, ErrCreate):
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, err
}

// Message is what the API server said.
func Message(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return text.Truncate(status.Status().Message, text.MaxStatusMessage)
	}
	return text.Truncate(err.Error(), text.MaxStatusMessage)
}

// Soon is the pause before another try when somebody else's write came
// first: about the time the watch needs to bring it.
const Soon = 25 * time.Millisecond
