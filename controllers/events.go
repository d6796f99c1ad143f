package controllers

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// reportingController is who the events come from.
const reportingController = "nodeproxy.io/controller"

// events writes events about Services, NodeProxy and policies. client-go's recorder folds events that
// differ only in their text into the first one, and the text is what matters
// here; so each is written by itself, under a name made of what it says, which
// also keeps a restart from saying it twice.
type events struct {
	client client.Client
	clock  clock.PassiveClock
}

// eventTimeout is how long the API server may take for an event.
const eventTimeout = 2 * time.Second

// warn writes a warning unless the same one is there already, and reports
// whether it is there now.
func (e *events) warn(ctx context.Context, svc *corev1.Service, reason, action, note string) bool {
	return e.write(ctx, svc.Namespace, corev1.ObjectReference{
		APIVersion: "v1", Kind: "Service", Namespace: svc.Namespace, Name: svc.Name,
		UID: svc.UID, ResourceVersion: svc.ResourceVersion,
	}, eventKind{warning, reason, action}, note)
}

// warnNodeProxy is warn about NodeProxy. Events about objects without a
// namespace are in the namespace default.
func (e *events) warnNodeProxy(ctx context.Context, np *v1alpha1.NodeProxy, reason, action, note string) {
	e.write(ctx, metav1.NamespaceDefault, corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "NodeProxy", Name: np.Name,
		UID: np.UID, ResourceVersion: np.ResourceVersion,
	}, eventKind{warning, reason, action}, note)
}

// transition writes that a policy has come to another state than its stored status
// says. The same may happen again to the same object: the event's name is made of the
// version that it leaves, too, so that a restart in between does not say it twice.
func (e *events) transition(ctx context.Context, policy client.Object, kind string, what eventKind, note string) {
	e.write(ctx, metav1.NamespaceDefault, corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Name: policy.GetName(),
		UID: policy.GetUID(), ResourceVersion: policy.GetResourceVersion(),
	}, what, note, policy.GetResourceVersion())
}

// eventKind is what an event says beside its note.
type eventKind struct {
	severity, reason, action string
}

// Severities of events.
const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)

// write writes an event unless it is there already: what is to tell it from others with
// the same reason and note is in marks.
func (e *events) write(ctx context.Context, namespace string, about corev1.ObjectReference, what eventKind, note string, marks ...string) bool {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	note = truncated(note, maxEventNote)
	h := fnv.New64a()
	_, _ = h.Write([]byte(string(about.UID) + what.reason + note + strings.Join(marks, ""))) // a hash never returns an error
	event := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: eventName(about.Name, h.Sum64())},
		EventTime:           metav1.NewMicroTime(e.clock.Now()),
		ReportingController: reportingController,
		ReportingInstance:   instance(),
		Type:                what.severity,
		Reason:              what.reason,
		Action:              what.action,
		Note:                note,
		Regarding:           about,
	}
	err := e.client.Create(ctx, event)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		log.FromContext(ctx).Error(err, "An event could not be written", "kind", about.Kind, "object", klog.KRef(about.Namespace, about.Name), "reason", what.reason, "note", note)
		return false
	}
	return true
}

// eventName is made of an object's name, which may be as long as that of an event and is
// cut then, and a hash that tells events apart.
func eventName(object string, hash uint64) string {
	suffix := fmt.Sprintf(".%016x", hash)
	if most := validation.DNS1123SubdomainMaxLength - len(suffix); len(object) > most {
		object = strings.TrimRight(object[:most], ".-") // no part of a name ends with these
	}
	return object + suffix
}

// instance names this process; the API takes 128 bytes.
func instance() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return truncated("nodeproxy-controller-"+host, 128)
}
