package retry

import (
	"errors"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/nodeproxy-io/nodeproxy/api/text"
)

const (
	// Soon is the pause after a write that lost a race: about the time until the watch delivers the
	// other write.
	Soon = 25 * time.Millisecond
	// ApplyPause is the minimum interval between two writes of an object that others change, too.
	ApplyPause = time.Second
	// DeniedPause is the time until an object that the API server denies is written again,
	// unless something changes before.
	DeniedPause = time.Minute
)

// Sooner returns the shorter of two pauses; 0: never.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// ErrCreate marks a failed creation. NotFound then means that the API server lacks the kind.
var ErrCreate = errors.New("create")

// IgnoreRace retries soon if a write failed only because the cache is behind. An object that does
// not exist needs no retry: the watch reports its deletion.
func IgnoreRace(err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return ctrl.Result{RequeueAfter: Soon}, nil
	case apierrors.IsNotFound(err) && !errors.Is(err, ErrCreate):
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, err
}

// renderedPolicy is the policy that reserves rendered objects for the controller.
const renderedPolicy = "ValidatingAdmissionPolicy 'nodeproxy-rendered-objects'"

// Denied reports whether the API server denies an object because of its content, so that the same
// write fails until the object or a policy of the cluster changes. Such a Service leaves the
// inventory, and nodes then remove its rules. Failures unrelated to the object must not count:
// missing permissions and a CRD that is being deleted, both Forbidden too, or a webhook that does
// not answer. Therefore the words of the admission chain decide. Our own policy counts as a missing
// permission: it denies all writes of an unknown controller, such as one in another namespace.
func Denied(err error) bool {
	if apierrors.IsInvalid(err) || apierrors.IsRequestEntityTooLargeError(err) {
		return true
	}
	message := Message(err)
	return !strings.Contains(message, renderedPolicy) &&
		(strings.Contains(message, "denied request") || // a ValidatingAdmissionPolicy, whatever its reason
			strings.Contains(message, "denied the request") || // a webhook, whatever its code
			strings.Contains(message, "exceeded quota"))
}

// Message returns the message of the API server.
func Message(err error) string {
	message := err.Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		message = status.Status().Message
	}
	return text.Truncate(message, text.MaxStatusMessage)
}
