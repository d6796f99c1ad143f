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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// ActionRender is the action of events about what was rendered.
	ActionRender = "Render"

	// reportingController is the source of the events.
	reportingController = "nodeproxy.io/controller"
	// nodeSeries is the namespace under which the queue counts events about Nodes: an outage of many
	// nodes does not use up the budget of NodeProxy and the policies. No namespace has this name.
	nodeSeries = "(nodes)"
)

// Recorder writes events about Services, Nodes, NodeProxy and policies. client-go's recorder merges
// events that differ only in their text, but here the text matters. Each event has a name derived
// from its content, so that a restart does not write it twice.
type Recorder struct {
	clock clock.PassiveClock
	queue *Queue
}

// NewRecorder returns a Recorder, which writes while the queue runs.
func NewRecorder(queue *Queue, c clock.PassiveClock) *Recorder {
	return &Recorder{clock: c, queue: queue}
}

// Warn reports a problem of a Service, or with an empty note that it has none of this reason. Tenants
// decide how often that changes, so each Service and reason has one event and one log line per
// eventInterval: the first note at once, and the last of those that follow if it still applies then.
// Warn returns false if the note was dropped.
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

// WarnNodeProxy reports a problem of NodeProxy. Events about objects without a namespace are in the
// namespace default.
func (e *Recorder) WarnNodeProxy(np *v1alpha1.NodeProxy, reason, action, note string) {
	e.Write(metav1.NamespaceDefault, clusterObject(np, "NodeProxy"), Kind{Warning, reason, action}, note)
}

// Transition reports that the state of NodeProxy differs from its stored status. The same
// transition can happen again: the name of the event includes the version of the object before it,
// so that a restart does not write it twice.
func (e *Recorder) Transition(np *v1alpha1.NodeProxy, what Kind, note string) {
	e.Write(metav1.NamespaceDefault, clusterObject(np, "NodeProxy"), what, note, np.ResourceVersion)
}

// TransitionOfPolicy is Transition for a policy. Tenants who label Services cause some transitions as
// often as they like, so each policy, generation and reason has one event per eventInterval. Those
// after the first one are only written if no other transition follows.
func (e *Recorder) TransitionOfPolicy(policy client.Object, kind string, what Kind, note string) {
	about := clusterObject(policy, kind)
	event := e.event(metav1.NamespaceDefault, about, what, note, about.ResourceVersion)
	about.ResourceVersion = ""
	e.queue.addOnly(Series{About: about, Reason: what.Reason, generation: policy.GetGeneration()}, event, e.clock.Now())
}

// TransitionOfNode reports that the state of a Node's proxy has changed: of each reason at most once
// per eventInterval, and nothing that no longer applies. In events the UID of a Node is its name, as
// in those of the kubelet.
func (e *Recorder) TransitionOfNode(rules *v1alpha1.NodeProxyRules, what Kind, note string) {
	about, event := e.ofNode(rules, what, note)
	e.queue.addOnly(Series{About: about, Reason: what.Reason}, event, e.clock.Now())
}

// ModeOfNode reports that a Node's proxy runs another mode, at most once per eventInterval. It replaces
// no event about the proxy's state.
func (e *Recorder) ModeOfNode(rules *v1alpha1.NodeProxyRules, what Kind, note string) {
	about, event := e.ofNode(rules, what, note)
	about.FieldPath = "status.mode"
	e.queue.addOnly(Series{About: about, Reason: what.Reason}, event, e.clock.Now())
}

// ofNode returns an event about a Node, and the object of its series.
func (e *Recorder) ofNode(rules *v1alpha1.NodeProxyRules, what Kind, note string) (corev1.ObjectReference, *eventsv1.Event) {
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: rules.Name, UID: types.UID(rules.Name)}
	event := e.event(metav1.NamespaceDefault, about, what, note, rules.ResourceVersion)
	about.Namespace = nodeSeries
	return about, event
}

// clusterObject refers to NodeProxy or a policy.
func clusterObject(o client.Object, kind string) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Name: o.GetName(),
		UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
	}
}

// Kind is the content of an event besides its note.
type Kind struct {
	Severity, Reason, Action string
}

// Severities of events.
const (
	Normal  = corev1.EventTypeNormal
	Warning = corev1.EventTypeWarning
)

// Write writes an event. Marks distinguish events with the same reason and note.
func (e *Recorder) Write(namespace string, about corev1.ObjectReference, what Kind, note string, marks ...string) {
	event := e.event(namespace, about, what, note, marks...)
	about.ResourceVersion = ""
	e.queue.add(Series{About: about, Reason: what.Reason, only: event.Name}, event, e.clock.Now())
}

// event returns an event with the current time.
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

// eventName consists of an object's name, cut if it is too long, and a hash that distinguishes
// events.
func eventName(object string, hash uint64) string {
	suffix := fmt.Sprintf(".%016x", hash)
	if most := validation.DNS1123SubdomainMaxLength - len(suffix); len(object) > most {
		object = strings.TrimRight(object[:most], ".-") // no part of a name ends with these
	}
	return object + suffix
}

// instance names this process; the API accepts 128 bytes.
func instance() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return text.Truncate("nodeproxy-controller-"+host, 128)
}
