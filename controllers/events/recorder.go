package events

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/text"
)

// reportingController is who the events come from.
const reportingController = "nodeproxy.io/controller"

// Recorder has events written about Services, NodeProxy and policies. client-go's recorder folds
// events that differ only in their text into the first one, and the text is what matters here;
// so each is written by itself, under a name made of what it says, which also keeps a restart
// from saying it twice. They wait in a queue, so that no reconciler waits for the API server.
type Recorder struct {
	clock clock.PassiveClock
	queue *Queue
}

// NewRecorder returns events that are written while the queue runs.
func NewRecorder(queue *Queue, c clock.PassiveClock) *Recorder {
	return &Recorder{clock: c, queue: queue}
}

// Warn says what is wrong with a Service for a reason; an empty note: nothing, any more. Who
// may write Services decides how often that changes, so there is one event, and one line in the
// log, for each Service and reason in eventInterval: the first note at once, and of those
// that follow only the last one, if that still holds when its time has come. It reports whether
// the note is taken.
func (e *Recorder) Warn(ctx context.Context, svc *corev1.Service, reason, action, note string) bool {
	series := Series{
		About: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service", Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID,
		},
		Reason: reason,
	}
	if note == "" {
		e.queue.retract(series)
		return true
	}
	about := series.About
	about.ResourceVersion = svc.ResourceVersion
	first, taken := e.queue.add(series, e.event(svc.Namespace, about, Kind{Warning, reason, action}, note), e.clock.Now())
	if first {
		log.FromContext(ctx).Info("A Service has a problem", "service", klog.KObj(svc), "reason", reason, "why", note)
	}
	return taken
}

// WarnNodeProxy is for NodeProxy. Events about objects without a namespace are in the
// namespace default.
func (e *Recorder) WarnNodeProxy(np *v1alpha1.NodeProxy, reason, action, note string) {
	e.Say(metav1.NamespaceDefault, clusterObject(np, "NodeProxy"), Kind{Warning, reason, action}, note)
}

// Transition says that NodeProxy has come to another state than its stored status says. The
// same may happen again to the same object: the event's name is made of the version that it
// leaves, too, so that a restart in between does not say it twice.
func (e *Recorder) Transition(np *v1alpha1.NodeProxy, what Kind, note string) {
	e.Say(metav1.NamespaceDefault, clusterObject(np, "NodeProxy"), what, note, np.ResourceVersion)
}

// TransitionOfPolicy is transition for a policy. Whoever may label
// a Service causes some of them, as often as he likes: there is one event for each policy, generation and reason in
// eventInterval, as with warn, of which those that follow the first one are written only if no
// other transition comes.
func (e *Recorder) TransitionOfPolicy(policy client.Object, kind string, what Kind, note string) {
	about := clusterObject(policy, kind)
	event := e.event(metav1.NamespaceDefault, about, what, note, about.ResourceVersion)
	about.ResourceVersion = ""
	series := Series{About: about, Reason: what.Reason, generation: policy.GetGeneration()}
	now := e.clock.Now()
	e.queue.retractOthers(series, now)
	e.queue.add(series, event, now)
}

// clusterObject refers to NodeProxy or a policy.
func clusterObject(o client.Object, kind string) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Name: o.GetName(),
		UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
	}
}

// Kind is what an event says beside its note.
type Kind struct {
	Severity, Reason, Action string
}

// Severities of events.
const (
	Normal  = corev1.EventTypeNormal
	Warning = corev1.EventTypeWarning
)

// Say has an event written, each different one: what is to tell it from others with the same
// reason and note is in marks.
func (e *Recorder) Say(namespace string, about corev1.ObjectReference, what Kind, note string, marks ...string) {
	event := e.event(namespace, about, what, note, marks...)
	about.ResourceVersion = ""
	e.queue.add(Series{About: about, Reason: what.Reason, only: event.Name}, event, e.clock.Now())
}

// event returns an event of now.
func (e *Recorder) event(namespace string, about corev1.ObjectReference, what Kind, note string, marks ...string) *eventsv1.Event {
	note = text.Truncate(note, text.MaxEventNote)
	h := fnv.New64a()
	_, _ = h.Write([]byte(string(about.UID) + what.Reason + note + strings.Join(marks, ""))) // a hash never returns an error
	return &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: eventName(about.Name, h.Sum64())},
		EventTime:           metav1.NewMicroTime(e.clock.Now()),
		ReportingController: reportingController,
		ReportingInstance:   instance(),
		Type:                what.Severity,
		Reason:              what.Reason,
		Action:              what.Action,
		Note:                note,
		Regarding:           about,
	}
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
	return text.Truncate("nodeproxy-controller-"+host, 128)
}

const ActionRender = "Render"
