package findings

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// Keys of findings that explain others.
const (
	KeyNoController = "no controller"
	KeyNoNodeProxy  = "no nodeproxy"
	KeyBehind       = "controller behind"
	KeyInventory    = "inventory"
	KeyRemoving     = "nodeproxy " + v1alpha1.ReasonRemoving
	KeyLagging      = "lagging"
)

// NodeKey is the key of something that is wrong with a node.
func NodeKey(node, what string) string { return "node " + node + " " + what }

// NodeKeys are the keys of what explains others on nodes: node by node, the gravest first.
func NodeKeys(nodes ...*v1alpha1.NodeProxyRules) []string {
	var keys []string
	for _, node := range nodes {
		for _, what := range []string{"silent", "conflict", "accepted", "programmed", "pods"} {
			keys = append(keys, NodeKey(node.Name, what))
		}
	}
	return keys
}

// Examination is one look at the objects of a cluster.
type Examination struct {
	*cluster.Objects
	// Own is the namespace of nodeproxy's own pods.
	Own cluster.Namespace
	// Only is the Service to examine; nil: all.
	Only *types.NamespacedName
	// Namespace is that of the Services to examine; empty: all.
	Namespace string
	// Nodes are the rules of nodes whose Node exists.
	Nodes []*v1alpha1.NodeProxyRules
	// Found and Notes are the results so far. Notes are not problems.
	Found []Finding
	Notes []string

	skipped map[Check]string
}

// New prepares the examination of a cluster, or of one Service.
func New(o *cluster.Objects, only *types.NamespacedName) *Examination {
	e := &Examination{Objects: o, Own: cluster.NamespaceOf(o.Pods), Only: only, skipped: map[Check]string{}}
	for i := range o.NodeRules {
		if _, absent := o.NodeRules[i].Annotations[v1alpha1.AnnotationNodeAbsentSince]; !absent {
			e.Nodes = append(e.Nodes, &o.NodeRules[i])
		}
	}
	return e
}

// Concerns reports whether a Service (namespace/name) is examined.
func (e *Examination) Concerns(service string) bool {
	if e.Only != nil {
		return service == e.Only.String()
	}
	return e.Namespace == "" || strings.HasPrefix(service, e.Namespace+"/")
}

// Add adds a finding.
func (e *Examination) Add(f Finding) { e.Found = append(e.Found, f) }

// Notef adds a note.
func (e *Examination) Notef(format string, args ...any) {
	e.Notes = append(e.Notes, fmt.Sprintf(format, args...))
}

// Skip records that a check, or a part of it, could not run. The first reason counts.
func (e *Examination) Skip(check Check, why string) {
	if e.skipped[check] == "" {
		e.skipped[check] = why
	}
}

// Skipped lists the checks that could not run.
func (e *Examination) Skipped() []SkippedCheck {
	var list []SkippedCheck
	for _, check := range checks {
		if why := e.skipped[check]; why != "" {
			list = append(list, SkippedCheck{Check: check, Message: why})
		}
	}
	return list
}

// Condition returns a condition if it has the status, else nil.
func Condition(of []metav1.Condition, name string, status metav1.ConditionStatus) *metav1.Condition {
	if c := meta.FindStatusCondition(of, name); c != nil && c.Status == status {
		return c
	}
	return nil
}

// since is when a condition, which may be nil, got its status; zero: unknown.
func since(c *metav1.Condition) metav1.Time {
	return cmp.Or(c, &metav1.Condition{}).LastTransitionTime
}

// Message is the message of a condition or, without one, its reason.
func Message(c *metav1.Condition) string { return cmp.Or(c.Message, c.Reason) }
